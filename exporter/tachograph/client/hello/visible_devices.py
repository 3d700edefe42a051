"""The GPUs that a launcher left this process, for an exporter that sees the whole node.

The numbers in `CUDA_VISIBLE_DEVICES` count what the process can see. In a container, or where Slurm confines a job to
its devices, number 0 is another GPU for each of them; the devices granted to it then have to be sent as well. If it is
unknown what a number refers to, nothing is sent: a wrong GPU is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping

LONGEST = 1024
"""Characters that the exporter takes."""


def visible_devices(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the hello's `visible_devices` and `granted_devices`; empty if they do not identify GPUs of the node."""
    found = _found(environment)
    return found if all(len(text) <= LONGEST and text.isprintable() for text in found.values()) else {}


def _found(environment: Mapping[str, str]) -> dict[str, str]:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    container = environment.get("NVIDIA_VISIBLE_DEVICES", "all")  # of the NVIDIA container runtime; images say "all"
    in_slurm = "SLURM_JOB_ID" in environment
    if visible is not None and (_named(visible) or not visible.strip()):
        return {"visible_devices": visible} if visible.strip() else {}
    if container != "all" and not (in_slurm and not _named(container)):
        return {"granted_devices": container} | ({} if visible is None else {"visible_devices": visible})
    if visible is None:
        return {}
    if in_slurm:
        return _in_slurm(visible, environment)
    return {} if "KUBERNETES_SERVICE_HOST" in environment else {"visible_devices": visible}


def _in_slurm(visible: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Compare the numbers with those of the node that Slurm granted: a part of these, or a count within them."""
    granted = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS") or ""
    own, asked = _numbers(granted), _numbers(visible)
    if not own or not asked:
        return {}
    of_node = set(asked) <= set(own)
    of_job = [own[number] for number in asked] if max(asked) < len(own) else []
    if of_node and of_job in ([], asked):
        return {"visible_devices": visible}
    return {} if of_node or not of_job else {"visible_devices": visible, "granted_devices": granted}


def _named(devices: str) -> bool:
    return devices.lstrip().startswith(("GPU-", "MIG-"))


def _numbers(devices: str) -> list[int]:
    """Return the numbers of a list, none where it has anything else."""
    entries = [entry.strip() for entry in devices[:LONGEST].split(",")]
    return [int(entry) for entry in entries] if all(entry.isdecimal() for entry in entries) else []
