"""Which GPU a rank computes on: by its own word, by NVML's list of processes, or by what its launcher left it.

The three are asked in this order, and a weaker one never overrules a stronger one that has answered:

1. The UUID in its hello: PyTorch knows it once CUDA is in use.
2. The process at the other end of its connection, by the kernel's word, among those that NVML lists on a GPU. It needs
   an exporter in the node's pid namespace; anywhere else the kernel says 0 of a process it cannot name.
3. The devices that its launcher left it, and its place among the node's ranks. A rank that says nothing of them is
   given none, however many GPUs there are: it may well compute on the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from tachograph.node.ranks.frames import Hello
from tachograph.node.samples import GpuIdentity

_SOURCES = 3
_NUMBER = re.compile("[0-9]{1,4}")
_UUID = re.compile("(GPU|MIG)-[0-9A-Za-z/-]{4,100}")
_MOST_DEVICES = 64


class DeviceGrant(NamedTuple):
    """What a launcher left a rank, as lists of numbers or UUIDs; empty where it said nothing.

    `visible` is CUDA_VISIBLE_DEVICES. Its numbers count the `granted` devices, which are all of the node if not given.
    """

    visible: str
    granted: str


@dataclass
class GpuPlacement:
    """Where a rank was found to sit; `source` is the one that said so, 0 the strongest."""

    gpu: GpuIdentity | None = None
    source: int = _SOURCES
    grant: DeviceGrant | None = None

    def update(self, resolver: GpuResolver, hello: Hello, pid: int, grant: DeviceGrant) -> None:
        """Take over the strongest answer, if it is at least as strong as the one that stands.

        A source that falls silent changes nothing: NVML lists no processes on a GPU that was lost, and that is when it
        matters most who sat there. What a launcher left is read once: its numbers are those of the process's start, and
        NVML counts anew when a GPU is unplugged.
        """
        if self.gpu is not None:
            self.gpu = resolver.renumbered(self.gpu)
        weakest = self.source - (grant == self.grant)
        for source, gpu in enumerate(resolver.answers(hello, pid, grant)):
            if source > weakest:
                return
            if gpu is not None:
                self.gpu, self.source = gpu, source
                self.grant = grant if source == _SOURCES - 1 else None
                return


class GpuResolver:
    """The GPUs of this node at one moment, to find those of ranks among.

    `of_pid` is NVML's word on a process; `mig_parents` gives the UUID of the GPU by that of each of its MIG instances:
    a rank on an instance is shown on the whole GPU, whose errors and temperature it shares.
    """

    def __init__(
        self,
        gpus: Sequence[GpuIdentity],
        of_pid: Callable[[int], GpuIdentity | None],
        mig_parents: Callable[[], Mapping[str, str]],
    ) -> None:
        self._gpus = [gpu for gpu in gpus if gpu.uuid]
        self._by_uuid = {gpu.uuid: gpu for gpu in self._gpus}
        # Once a GPU was unplugged, NVML has given its index to another; Slurm, for one, has not.
        unambiguous = len({gpu.index for gpu in gpus}) == len(gpus)
        self._by_index = {gpu.index: gpu for gpu in self._gpus} if unambiguous else {}
        # CUDA numbers the fastest GPU first unless told otherwise, NVML goes by the PCI bus. Both are one only where
        # all GPUs are alike, and none is missing.
        self._alike = len(self._by_index) == len(gpus) and len({gpu.name for gpu in gpus}) == 1
        self._of_pid = of_pid
        self._ask_mig_parents = mig_parents

    def answers(self, hello: Hello, pid: int, grant: DeviceGrant) -> Iterator[GpuIdentity | None]:
        """Yield what each source says of a rank, the strongest first."""
        yield self._named(hello.uuid) if hello.uuid else None
        yield self._of_pid(pid) if pid > 0 else None
        seen = self._seen(grant)
        place = 0 if len(seen) == 1 else hello.local_rank
        yield seen[place] if place < len(seen) else None

    def renumbered(self, gpu: GpuIdentity) -> GpuIdentity:
        """Return a GPU under the index it has now: NVML counts anew when another one is unplugged."""
        return self._by_uuid.get(gpu.uuid, gpu)

    @cached_property
    def _mig_parents(self) -> Mapping[str, str]:
        return self._ask_mig_parents()

    def _named(self, uuid: str) -> GpuIdentity | None:
        """Return the GPU of a UUID, or the one that a MIG instance of that UUID is a part of."""
        if (gpu := self._by_uuid.get(uuid)) is not None:
            return gpu
        kind, _, digits = uuid.partition("-")
        if kind == "MIG" and digits.startswith("GPU-"):  # drivers before 470: MIG-GPU-<the GPU's own>/1/0
            return self._by_uuid.get(digits.partition("/")[0])
        # PyTorch writes GPU- before whatever CUDA gives it, and under MIG that is the instance's.
        return self._by_uuid.get(self._mig_parents.get(f"MIG-{digits}", ""))

    def _seen(self, grant: DeviceGrant) -> Sequence[GpuIdentity]:
        """Return the GPUs that CUDA shows a process, in its order; none where that cannot be known."""
        whole = self._gpus
        if grant.granted:  # in whatever order they were granted, CUDA numbers them in the node's
            entries = _entries(grant.granted)
            granted = _until_unknown(self._by_index.get(entry) or self._device(entry, ()) for entry in entries)
            whole = sorted(granted, key=self._gpus.index) if len(granted) == len(entries) else []
        numbered = whole if self._alike or len(whole) == 1 else []
        if not grant.visible:
            return numbered if grant.granted else []
        # As in CUDA, what stands behind an entry that cannot be read does not count.
        return _until_unknown(self._device(entry, numbered) for entry in _entries(grant.visible))

    def _device(self, entry: str, numbered: Sequence[GpuIdentity]) -> GpuIdentity | None:
        """Return the GPU that an entry means: a number, a UUID, or the start of one."""
        if _NUMBER.fullmatch(entry):
            return numbered[int(entry)] if int(entry) < len(numbered) else None
        if not _UUID.fullmatch(entry):
            return None
        if (gpu := self._named(entry)) is not None:
            return gpu
        starts = [gpu for gpu in self._gpus if gpu.uuid.startswith(entry)]
        return starts[0] if len(starts) == 1 else None


def _entries(devices: str) -> list[str]:
    return [entry.strip() for entry in devices.split(",", _MOST_DEVICES)[:_MOST_DEVICES]]


def _until_unknown(gpus: Iterable[GpuIdentity | None]) -> list[GpuIdentity]:
    return [gpu for gpu in takewhile(lambda gpu: gpu is not None, gpus) if gpu is not None]
