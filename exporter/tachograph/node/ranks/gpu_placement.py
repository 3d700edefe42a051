"""The GPU that a rank computes on: from NVML's list of processes, from its hello, or from its launcher's variables.

The three sources are asked in this order, and a weaker one never overrides a stronger one that has answered:

1. The process at the other end of its connection (SO_PEERCRED), if NVML lists it on a GPU; on several, the one of them
   that its hello or its launcher names. This needs an exporter in the node's pid namespace; in any other one the kernel
   reports pid 0.
2. The UUID in its hello: PyTorch knows it once CUDA is in use.
3. The devices that its launcher made visible to it, and its local rank. Without these variables a rank gets no GPU,
   however many there are: it may compute on the CPU.
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

_DRIVER, _SOURCES = 0, 3
_NUMBER = re.compile("[0-9]{1,4}")
_UUID = re.compile("(GPU|MIG)-[0-9A-Za-z/-]{4,100}")
_MOST_DEVICES = 64


class DeviceGrant(NamedTuple):
    """The devices that a launcher gave to a rank, as lists of numbers or UUIDs; empty if not set.

    `visible` is CUDA_VISIBLE_DEVICES. Its numbers index the `granted` devices, which are all of the node if not set.
    """

    visible: str
    granted: str


@dataclass
class GpuPlacement:
    """The GPU found for a rank; `source` is the number of the source that named it, 0 the strongest.

    `confirmed`: the driver lists the rank there, or another process of its user (`gpu_owners`).
    """

    gpu: GpuIdentity | None = None
    source: int = _SOURCES
    grant: DeviceGrant | None = None
    confirmed: bool = False

    @property
    def is_of_driver(self) -> bool:
        """Whether the driver named the GPU, and not the rank."""
        return self.source == _DRIVER

    def update(self, resolver: GpuResolver, hello: Hello, pid: int, grant: DeviceGrant) -> None:
        """Apply the strongest answer, if it is at least as strong as the current one.

        A source that no longer answers changes nothing: NVML lists no processes on a lost GPU, which is when its ranks
        matter most. A grant is read once: its numbers are those of the process's start, and NVML renumbers GPUs when
        one is unplugged.
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
    """Finds the GPUs of ranks among those of this node at one moment.

    `of_pid` returns the GPU on which NVML lists a process, if it is one only, and `processes` all pids by UUID;
    `mig_parents` maps the UUID of a MIG instance to that of its GPU: a rank on an instance is shown on the whole GPU,
    whose errors and temperature it shares.
    """

    def __init__(
        self,
        gpus: Sequence[GpuIdentity],
        of_pid: Callable[[int], GpuIdentity | None],
        mig_parents: Callable[[], Mapping[str, str]],
        processes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._processes = processes or {}
        self._gpus = [gpu for gpu in gpus if gpu.uuid]
        self._by_uuid = {gpu.uuid: gpu for gpu in self._gpus}
        # Once a GPU was unplugged, NVML has given its index to another one; Slurm, for example, has not.
        unambiguous = len({gpu.index for gpu in gpus}) == len(gpus)
        self._by_index = {gpu.index: gpu for gpu in self._gpus} if unambiguous else {}
        # CUDA numbers the fastest GPU first by default, NVML follows the PCI bus. The two agree only if all GPUs are
        # alike and none is missing.
        self._alike = len(self._by_index) == len(gpus) and len({gpu.name for gpu in gpus}) == 1
        self._of_pid = of_pid
        self._ask_mig_parents = mig_parents
        self._seen_by: dict[DeviceGrant, Sequence[GpuIdentity]] = {}  # a launcher gives its ranks all the same

    def answers(self, hello: Hello, pid: int, grant: DeviceGrant) -> Iterator[GpuIdentity | None]:
        """Yield the answer of each source for a rank, the strongest first."""
        yield self._listed(hello, pid, grant) if pid > 0 else None
        yield self._claimed(hello)
        yield self._given(hello, grant)

    def renumbered(self, gpu: GpuIdentity) -> GpuIdentity:
        """Return a GPU with its current index: NVML renumbers GPUs when another one is unplugged."""
        return self._by_uuid.get(gpu.uuid, gpu)

    def _listed(self, hello: Hello, pid: int, grant: DeviceGrant) -> GpuIdentity | None:
        """Return the GPU on which NVML lists a process; of several, as after a stray context, the one claimed."""
        if (gpu := self._of_pid(pid)) is not None:
            return gpu
        several = {uuid for uuid, pids in self._processes.items() if pid in pids}
        claims = (self._claimed(hello), self._given(hello, grant)) if several else ()
        return next((gpu for gpu in claims if gpu is not None and gpu.uuid in several), None)

    def _claimed(self, hello: Hello) -> GpuIdentity | None:
        return self._named(hello.uuid) if hello.uuid else None

    def _given(self, hello: Hello, grant: DeviceGrant) -> GpuIdentity | None:
        if (seen := self._seen_by.get(grant)) is None:
            seen = self._seen_by[grant] = self._seen(grant)
        place = 0 if len(seen) == 1 else hello.local_rank
        return seen[place] if place < len(seen) else None

    @cached_property
    def _mig_parents(self) -> Mapping[str, str]:
        return self._ask_mig_parents()

    def _named(self, uuid: str) -> GpuIdentity | None:
        """Return the GPU with a UUID, or the one of the MIG instance with that UUID."""
        if (gpu := self._by_uuid.get(uuid)) is not None:
            return gpu
        kind, _, digits = uuid.partition("-")
        if kind == "MIG" and digits.startswith("GPU-"):  # drivers before 470: MIG-GPU-<the GPU's own>/1/0
            return self._by_uuid.get(digits.partition("/")[0])
        # PyTorch writes GPU- before any UUID that CUDA reports, also before that of a MIG instance.
        return self._by_uuid.get(self._mig_parents.get(f"MIG-{digits}", ""))

    def _seen(self, grant: DeviceGrant) -> Sequence[GpuIdentity]:
        """Return the GPUs that CUDA shows to a process, in its order; none if that cannot be known."""
        whole = self._gpus
        if grant.granted:  # CUDA numbers them in the node's order, not in the order of the grant
            entries = _entries(grant.granted)
            granted = _until_unknown(self._by_index.get(entry) or self._device(entry, ()) for entry in entries)
            whole = sorted(granted, key=self._gpus.index) if len(granted) == len(entries) else []
        numbered = whole if self._alike or len(whole) == 1 else []
        if not grant.visible:
            return numbered if grant.granted else []
        # As in CUDA, entries after an invalid one are ignored.
        return _until_unknown(self._device(entry, numbered) for entry in _entries(grant.visible))

    def _device(self, entry: str, numbered: Sequence[GpuIdentity]) -> GpuIdentity | None:
        """Return the GPU that an entry names: a number, a UUID, or the start of a UUID."""
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
