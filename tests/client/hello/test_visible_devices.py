"""Which GPUs a process was left: told only where the node's own are meant beyond doubt."""

from __future__ import annotations

import pytest

from tachograph.client.hello.visible_devices import LONGEST, visible_devices

SLURM, POD = {"SLURM_JOB_ID": "1"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def left(cuda: str | None = None, container: str | None = None, **more: str) -> tuple[str | None, str | None]:
    """The reported `visible_devices` and `granted_devices`, given the two variables and other settings."""
    environment = dict(more)
    if cuda is not None:
        environment["CUDA_VISIBLE_DEVICES"] = cuda
    if container is not None:
        environment["NVIDIA_VISIBLE_DEVICES"] = container
    found = visible_devices(environment)
    assert found.keys() <= {"visible_devices", "granted_devices"}
    return found.get("visible_devices"), found.get("granted_devices")


def test_nothing_set_says_nothing() -> None:
    """Without variables, or with a CUDA image's own "all", a CPU run is not tied to any GPU; nor with an empty list."""
    assert left() == left(container="all") == left("") == left(" ", "GPU-1") == (None, None)


def test_on_bare_metal_numbers_are_the_nodes() -> None:
    """A person's own CUDA_VISIBLE_DEVICES counts all GPUs, also in a container that has them all."""
    assert left("2,3") == left("2,3", "all") == ("2,3", None)


def test_uuids_are_the_same_everywhere() -> None:
    """Names need no translation, whoever confines the process."""
    for more in ({}, SLURM, POD):
        assert left("GPU-1,GPU-2", "void", **more) == ("GPU-1,GPU-2", None)
        assert left("MIG-1", **more) == ("MIG-1", None)


def test_in_a_container_numbers_count_what_it_was_granted() -> None:
    """The container runtime's list is reported as well, and alone if CUDA sees all of it."""
    assert left("0", "GPU-5,GPU-6") == ("0", "GPU-5,GPU-6")
    assert left(None, "GPU-5,GPU-6", **POD) == (None, "GPU-5,GPU-6")
    assert left("1", "5,6", **POD) == ("1", "5,6")


def test_a_pod_whose_devices_nobody_names() -> None:
    """Devices given by CDI leave no list: number 0 may be any GPU, so the exporter learns that it cannot resolve it."""
    assert left("0", **POD) == left("0", "all", **POD) == (None, None)
    assert left("0", "void", **POD) == ("0", "void")


@pytest.mark.parametrize(
    ("cuda", "granted", "told"),
    [
        ("2,3", "2,3", ("2,3", None)),  # not confined: a part of the node
        ("3", "2,3", ("3", None)),
        ("0,1", "2,3", ("0,1", "2,3")),  # confined: counted within the job
        ("0,1,2,3", "0,1,2,3", ("0,1,2,3", None)),  # both mean the same
        ("1", "1,2", (None, None)),  # number 1 of the node, or the job's second: not to be known
        ("4", "2,3", (None, None)),
        ("0", "", (None, None)),
        ("0", "0-3", (None, None)),
        ("x", "0", (None, None)),
        ("9" * 1100, "0", (None, None)),
    ],
)
def test_in_slurm(cuda: str, granted: str, told: tuple[str | None, str | None]) -> None:
    """Slurm says which of the node's GPUs a step has; whether CUDA's numbers count these or all shows by comparison."""
    assert left(cuda, **SLURM, SLURM_STEP_GPUS=granted) == told
    assert left(cuda, **SLURM, SLURM_JOB_GPUS=granted) == told


def test_a_steps_own_devices_come_first() -> None:
    """A step may have a part of the job's GPUs only."""
    assert left("0", **SLURM, SLURM_STEP_GPUS="6", SLURM_JOB_GPUS="4,5,6,7") == ("0", "6")


def test_a_container_inside_of_slurm() -> None:
    """The runtime's numbers are relative to what Slurm left it, so they identify no GPU; its UUIDs do."""
    assert left("0", "0", **SLURM, SLURM_STEP_GPUS="5") == ("0", "5")
    assert left(None, "0", **SLURM) == (None, None)
    assert left("0", "GPU-5", **SLURM) == ("0", "GPU-5")


@pytest.mark.parametrize("wrong", ["GPU-\x1b", "GPU-\udcff", "GPU-" + "a" * LONGEST, "0," * LONGEST])
def test_what_cannot_be_sent_is_not(wrong: str) -> None:
    """Too long, or not printable: nothing is reported, and nothing raises."""
    assert left(wrong) == left("0", wrong) == left(None, wrong) == (None, None)
