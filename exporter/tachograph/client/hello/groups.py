"""The progress of each process group: PyTorch's own sequence numbers, read even while the training thread is stuck.

They are in the Flight Recorder's JSON dump under `pg_status`. Without entries a dump takes 0.05 ms, needs no
collective, and works from a side thread while the main thread hangs. Builds without it report nothing.
"""

from __future__ import annotations

import json

from tachograph.client.torch.loaded_torch import in_use, loaded_torch

ATTEMPTS = 5
"""Dumps that may fail in a row before no more are tried."""

GROUP_LIMIT = 32
"""The number of process groups that the exporter keeps per rank; the first ones, which hold all ranks, are kept."""

_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""NCCL keeps a recorder of its own in CUDA builds (not yet run on a GPU); gloo and others use the general one."""

_FIELDS = (
    ("collective_enqueued", "last_enqueued_collective"),
    ("collective_completed", "last_completed_collective"),
)


class GroupProgress:
    """Reads the sequence numbers until it has failed too often."""

    def __init__(self) -> None:
        self._failures = 0

    def metrics(self) -> dict[str, dict[str, int]]:
        """Return `collective_enqueued` and `collective_completed` by group; empty where there is nothing to read."""
        if self._failures >= ATTEMPTS or in_use("distributed") is None:
            return {}
        try:
            groups = _status()
            found = {key: {group: max(int(status[field]), 0) for group, status in groups} for key, field in _FIELDS}
        except Exception:  # noqa: BLE001 - a private API: absent, renamed or changed, each costs these two gauges only
            self._failures += 1
            return {}
        self._failures = 0
        return {key: values for key, values in found.items() if values}


def _status() -> list[tuple[str, dict[str, str]]]:
    distributed_c10d = loaded_torch()._C._distributed_c10d
    dumps = [getattr(distributed_c10d, name) for name in _DUMPS if hasattr(distributed_c10d, name)]
    if not dumps:
        raise AttributeError("this build of PyTorch has no flight recorder")
    for dump in dumps:
        if status := json.loads(dump(includeCollectives=False)).get("pg_status"):
            return sorted(status.items(), key=lambda item: (len(item[0]), item[0]))[:GROUP_LIMIT]
    return []
