"""A node on which several runs have ranks: one exporter, one page of its host, the GPUs of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tachograph.node.nic.port_reading import PortReading
from tachograph.node.samples import GpuIdentity, GpuSnapshot
from tachograph_lab.fleet.simulated_gpus import SimulatedGpus
from tachograph_lab.fleet.simulated_node import FREE_MEMORY, HostSample, SimulatedNode


class ClusterGpus:
    """The GPUs of all runs on a node, as the exporter's GPU side."""

    def __init__(self, parts: Sequence[SimulatedGpus]) -> None:
        self._parts = parts

    async def run(self) -> None:
        """Return at once: readings are computed on demand."""

    def snapshot(self) -> GpuSnapshot | None:
        """Return the readings now."""
        taken = [each for part in self._parts if (each := part.snapshot()) is not None]
        reason = next((each.reason for each in taken if each.reason), "")
        samples = tuple(sample for each in taken for sample in each.samples)
        return GpuSnapshot(samples, taken[0].duration, taken[0].monotonic, not reason, reason)

    def gpus(self) -> Sequence[GpuIdentity]:
        """Return the GPUs of this node."""
        return [gpu for part in self._parts for gpu in part.gpus()]

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        """Return the GPU of the rank with this pid."""
        return next((gpu for part in self._parts if (gpu := part.gpu_of_pid(pid)) is not None), None)

    def processes(self) -> Mapping[str, Sequence[int]]:
        """Return the pids that compute on each GPU, by its UUID."""
        return {uuid: pids for part in self._parts for uuid, pids in part.processes().items()}

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        """Return the peak of a GPU of this node."""
        return next((peak for part in self._parts if (peak := part.peak_flops(uuid, precision)) is not None), None)

    def collectors(self) -> Mapping[str, str]:
        """Return the failure reason of each collector, empty if it works."""
        told = [part.collectors() for part in self._parts]
        return {name: next((each[name] for each in told if each[name]), "") for name in told[0]}

    def worker_ends(self) -> Mapping[str, int]:
        """Return zero for every cause: there is no worker that could end."""
        return sum((Counter(part.worker_ends()) for part in self._parts), Counter())


class ClusterNode:
    """One node of a cluster, given as each of its runs simulates it."""

    def __init__(self, parts: Sequence[SimulatedNode]) -> None:
        self._parts = parts
        self.name = parts[0].name
        self.gpus = ClusterGpus([part.gpus for part in parts])

    @property
    def exporter_up(self) -> bool:
        """Whether the node's exporter is running."""
        return self._parts[0].exporter_up

    @property
    def up(self) -> bool:
        """Whether the node itself is running."""
        return self._parts[0].up

    @property
    def reachable(self) -> bool:
        """Whether Prometheus can scrape it."""
        return self._parts[0].reachable

    @property
    def listed(self) -> bool:
        """Whether service discovery names its exporter."""
        return self._parts[0].listed

    @property
    def second(self) -> tuple[str, str] | None:
        """Job and instance by which Prometheus scrapes its exporter once more."""
        return self._parts[0].second

    @property
    def ahead(self) -> float:
        """The seconds by which its clock is ahead."""
        return self._parts[0].ahead

    def take(self) -> list[PortReading]:
        """Return what its network ports read now; one that a run sees down is down."""
        found: dict[tuple[str, str], PortReading] = {}
        for port in (port for part in self._parts for port in part.take()):
            if port.up:
                found.setdefault((port.device, port.port), port)
            else:
                found[port.device, port.port] = port
        return list(found.values())

    def trouble(self) -> str:
        """Return "", for they can always be read."""
        return ""

    def host_samples(self) -> Iterator[HostSample]:
        """Yield the samples of its host; where runs differ, what one of them did to it counts."""
        found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for part in self._parts:
            for name, labels, value in part.host_samples():
                key = (name, tuple(labels.items()))
                worse = min if name == FREE_MEMORY else max
                found[key] = worse(value, found.get(key, value))
        for (name, pairs), value in found.items():
            yield name, dict(pairs), value
