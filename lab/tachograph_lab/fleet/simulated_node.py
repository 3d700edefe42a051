"""A simulated node: its GPUs, what runs on it, and the node_exporter samples that our rules and dashboards read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tachograph.node.nic.port_reading import PortDetails, PortReading
from tachograph.node.nic.sysfs import RDMA_ERRORS
from tachograph_lab.fleet.simulated_gpus import SimulatedGpus
from tachograph_lab.scenario import Scenario
from tachograph_lab.scenario.faults import (
    IdlePortDown,
    Kill,
    Leak,
    LinkDown,
    ScrapeBlocked,
    ScrapeFailure,
    ScrapeLost,
    SlowCollective,
)

MEMORY_BYTES = 2.16e12
USED_BYTES = 3.5e11
PORT_BYTES_PER_SECOND = 50e9
"""400 Gb/s; each GPU has a port of its own, as in a DGX."""
_DEVICE, BOARD = "mlx5_", "MT_0000000838"

_Labels = Mapping[str, str]
HostSample = tuple[str, _Labels, float]
FREE_MEMORY = "node_memory_MemAvailable_bytes"
_ERRORS = (
    "node_infiniband_link_error_recovery_total", "node_infiniband_local_link_integrity_errors_total",
    "node_infiniband_local_ack_timeout_errors_total", "node_infiniband_port_errors_received_total",
    "node_infiniband_rx_icrc_encapsulated_errors_total", "node_infiniband_np_cnp_packets_sent_total",
)  # fmt: skip


class SimulatedHost:
    """One node without its GPUs; `now` returns the scenario's second, `sent` the bytes a GPU's port has transferred."""

    def __init__(
        self, scenario: Scenario, node: int, epoch: float, now: Callable[[], float], sent: Callable[[int], float]
    ) -> None:
        fleet = scenario.fleet
        first = node * fleet.gpus_per_node
        ranks = range(first, first + fleet.gpus_per_node)
        faults = scenario.faults
        self._ranks = ranks
        self._first_gpu = fleet.first_gpu
        self._epoch = epoch
        self._booted = epoch - 30 * 86400
        self._now = now
        self._sent = sent
        self._noisy = [each for each in faults if isinstance(each, SlowCollective) and node in each.nodes]
        self._downs = [each for each in faults if isinstance(each, LinkDown) and each.node == node]
        self._idle_downs = [each for each in faults if isinstance(each, IdlePortDown) and each.node == node]
        kills = [each for each in faults if isinstance(each, Kill) and each.rank in ranks]
        self._killed = [each for each in kills if each.cause == "oom"]
        self._leaks = [
            (each, sum(rank in ranks for rank in each.ranks))
            for each in faults
            if isinstance(each, Leak) and each.kind == "host" and any(rank in ranks for rank in each.ranks)
        ]

    def samples(self, ahead: float) -> Iterator[tuple[str, _Labels, float]]:
        """Yield name, labels and value of every sample now; the node's clock is `ahead` seconds ahead."""
        now = self._now()
        yield "node_boot_time_seconds", {}, self._booted + ahead
        yield "node_time_seconds", {}, self._epoch + now + ahead
        yield "node_vmstat_oom_kill", {}, float(sum(each.at <= now for each in self._killed))
        leaked = sum(
            ranks * each.bytes_per_hour * max(0.0, min(now, each.until) - each.at) / 3600 for each, ranks in self._leaks
        )
        yield "node_memory_MemTotal_bytes", {}, MEMORY_BYTES
        yield FREE_MEMORY, {}, max(0.0, MEMORY_BYTES - USED_BYTES - leaked)
        for name, share in (("cpu_waiting", 0.02), ("memory_stalled", 0.0), ("io_stalled", 0.001)):
            yield f"node_pressure_{name}_seconds_total", {}, share * now
        disk = {"device": "/dev/nvme0n1p2", "fstype": "ext4", "mountpoint": "/"}
        yield "node_filesystem_size_bytes", disk, 1.9e12
        yield "node_filesystem_avail_bytes", disk, 1.2e12
        yield "node_filesystem_readonly", disk, 0.0
        for collector in ("infiniband", "netclass", "netdev"):
            yield "node_scrape_collector_success", {"collector": collector}, 1.0
        for port in self._ethernet(now):
            yield from _ethernet_samples(port, now)
        for place, rank in enumerate(self._ranks):
            yield from _rdma_samples(self._port(place, now), self._sent(rank))

    def ports(self) -> list[PortReading]:
        """Return what the node's network ports read now: one for each GPU, eth0, and devices that nobody uses."""
        now = self._now()
        return [*(self._port(place, now) for place in range(len(self._ranks))), *self._ethernet(now)]

    def _ethernet(self, now: float) -> Iterator[PortReading]:
        yield PortReading("eth0", "", up=True, received=5e7 * now, details=PortDetails(12.5e9, {}))
        for device in dict.fromkeys(each.device for each in self._idle_downs):
            yield PortReading(device, "", up=not self._is_down(device, now))

    def _is_down(self, device: str, now: float) -> bool:
        return any(each.device == device and each.at <= now < each.until for each in self._idle_downs)

    def _port(self, place: int, now: float) -> PortReading:
        down = place == 0 and any(each.at <= now < each.until for each in self._downs)
        errors = sum(each.nic_errors * (min(now, each.until) - each.at) for each in self._noisy if each.at <= now)
        counted = {**dict.fromkeys(RDMA_ERRORS, 0.0), "symbol": float(int(errors))}
        details = PortDetails(PORT_BYTES_PER_SECOND, counted)
        return PortReading(f"{_DEVICE}{self._first_gpu + place}", "1", not down, BOARD, details=details)


def _ethernet_samples(port: PortReading, now: float) -> Iterator[HostSample]:
    labels = {"device": port.device}
    yield "node_network_up", labels, float(port.up)
    if port.received is not None:
        yield "node_network_speed_bytes", labels, 12.5e9
        yield "node_network_receive_bytes_total", labels, port.received
        yield "node_network_transmit_bytes_total", labels, 2e7 * now
        yield "node_network_receive_errs_total", labels, 0.0
        yield "node_network_receive_frame_total", labels, 0.0


def _rdma_samples(port: PortReading, carried: float) -> Iterator[HostSample]:
    """Yield what node_exporter shows of a port that has carried so many bytes."""
    labels = {"device": port.device, "port": port.port}
    board = {"device": port.device, "board_id": port.board, "firmware_version": "28.43.1014", "hca_type": "MT4129"}
    yield "node_infiniband_info", board, 1.0
    yield "node_infiniband_state_id", labels, 4.0 if port.up else 1.0
    yield "node_infiniband_physical_state_id", labels, 5.0 if port.up else 3.0
    yield "node_infiniband_rate_bytes_per_second", labels, PORT_BYTES_PER_SECOND
    yield "node_infiniband_port_data_transmitted_bytes_total", labels, carried
    yield "node_infiniband_port_data_received_bytes_total", labels, carried
    errors = {} if port.details is None else port.details.errors
    yield "node_infiniband_symbol_error_total", labels, errors.get("symbol", 0.0)
    yield from ((name, labels, 0.0) for name in _ERRORS)


class SimulatedNode:
    """One node, at the second to which its simulation was last advanced.

    `exporter_up`: the node's exporter is running; after a restart it is a new one. `up`: the node itself is running.
    `reachable`: Prometheus can scrape it. `listed`: service discovery names its exporter. `second`: job and instance
    by which Prometheus scrapes its exporter once more. `ahead`: the seconds by which its clock is ahead.
    """

    def __init__(self, name: str, gpus: SimulatedGpus, host: SimulatedHost) -> None:
        self.name = name
        self.gpus = gpus
        self.exporter_up = True
        self.up = True
        self.reachable = True
        self.listed = True
        self.second: tuple[str, str] | None = None
        self.ahead = 0.0
        self._host = host

    def take(self) -> list[PortReading]:
        """Return what its network ports read now; it is the exporter's reader of them."""
        return self._host.ports()

    def trouble(self) -> str:
        """Return "", for they can always be read."""
        return ""

    def host_samples(self) -> Iterator[tuple[str, _Labels, float]]:
        """Yield the node_exporter samples that our rules and dashboards read."""
        return self._host.samples(self.ahead)


def is_unreachable(
    fault: ScrapeFailure | ScrapeLost | ScrapeBlocked, node: int, now: float, scrape_seconds: float
) -> bool:
    """Return whether a fault keeps Prometheus from scraping a node; a scrape that fails lasts until the next one."""
    if node not in fault.where or not fault.at <= now < fault.until:
        return False
    if isinstance(fault, ScrapeBlocked):
        return True
    every = fault.every if isinstance(fault, ScrapeFailure) else None
    since = (now - fault.at) % every if every is not None else now - fault.at
    return since < scrape_seconds
