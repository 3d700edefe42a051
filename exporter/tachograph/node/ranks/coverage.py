"""GPUs on which processes compute of which none is recorded: what recording has not reached.

A rank counts for the GPU on which the driver lists it, or another process of its user; its claim alone does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tachograph.node.samples import GpuIdentity

PATIENCE_SECONDS = 600.0
"""How long a process may use a GPU before it is said to record nothing: a model is loaded and compiled first."""


class UnrecordedProcesses(NamedTuple):
    """The processes of a user, empty where it is not visible, on GPUs on which nothing is recorded."""

    user: str
    processes: int
    gpus: tuple[str, ...]


class Coverage:
    """The processes that the driver lists on each GPU, with the moments since when it does."""

    def __init__(self) -> None:
        self._processes: Mapping[str, Sequence[int]] = {}
        self._since: dict[int, float] = {}

    def note(self, processes: Mapping[str, Sequence[int]], now: float) -> None:
        """Take the pids that the driver lists, by the UUID of the GPU."""
        if processes == self._processes:
            return
        self._processes = {uuid: tuple(pids) for uuid, pids in processes.items()}
        listed = (pid for pids in self._processes.values() for pid in pids)
        self._since = {pid: self._since.get(pid, now) for pid in listed}

    @property
    def is_known(self) -> bool:
        """Whether the driver lists a process: one that lists none may only not show them, as in a container."""
        return bool(self._processes)

    def unrecorded(self, recorded: Collection[str], now: float) -> dict[str, list[int]]:
        """Return the pids on each GPU, by UUID, on which processes compute without a rank for a while."""
        found = {
            uuid: [pid for pid in pids if now - self._since[pid] >= PATIENCE_SECONDS]
            for uuid, pids in self._processes.items()
            if uuid not in recorded
        }
        return {uuid: pids for uuid, pids in found.items() if pids}


def by_user(
    found: Mapping[str, Iterable[int]], gpus: Iterable[GpuIdentity], user: Callable[[int], str]
) -> list[UnrecordedProcesses]:
    """Return them by user, given how the user of a pid is shown; a process on several GPUs is one."""
    pids: dict[str, set[int]] = {}
    used: dict[str, list[str]] = {}
    for gpu in gpus:
        for pid in found.get(gpu.uuid, ()):
            name = user(pid)
            pids.setdefault(name, set()).add(pid)
            if gpu.index not in used.setdefault(name, []):
                used[name].append(gpu.index)
    return [UnrecordedProcesses(name, len(pids[name]), tuple(used[name])) for name in sorted(pids)]
