"""What a node concludes of its network ports: both sides of each limit, each window, and nothing of healthy ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.nic.port_conclusions import PortConclusions
from tachograph.node.nic.port_reading import PortDetails, PortReading
from tachograph.node.nic.shown_ports import ShownPorts

HOUR = 3600.0
Ports = Callable[[float], Sequence[PortReading]]
"""What the ports of a node read at a second."""


class Node:
    """A node whose ports are functions of the time."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.conclusions = PortConclusions()
        self.now = 0.0

    def run(self, until: float, every: float = 5.0) -> dict[tuple[str, ...], float]:
        """Look until a second, once in so many; return what is concluded then, by family and labels."""
        while self.now < until:
            self.conclusions.look(self.ports(self.now), self.now)
            self.now += every
        self.now = until
        return dict(said(self.conclusions, self.now))


def said(conclusions: PortConclusions, now: float) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield samples by family and label values; a node without idle ports says that there are none."""
    for metric, labels, value in conclusions.samples(now):
        if metric is not catalog.NODE_UNUSED_PORTS or value:
            yield (metric.name.removeprefix("tachograph_"), *labels), value


def rdma(
    device: str = "mlx5_0", *, up: bool = True, speed: float = 5e10, board: str = "M", port: str = "1", **errors: float
) -> PortReading:
    """Return an RDMA port's readings."""
    return PortReading(device, port, up, board, details=PortDetails(speed, errors))


def ethernet(device: str, received: float, *, up: bool = True) -> PortReading:
    """Return an Ethernet device's readings."""
    return PortReading(device, "", up, received=received, details=PortDetails(1.25e10, {}))


def test_healthy_ports_have_no_series() -> None:
    """But that none of them is idle."""
    node = Node(lambda now: [rdma(symbol=7), rdma("mlx5_1"), ethernet("eth0", 1e8 * now)])
    assert node.run(600) == {}
    assert [(s.metric, s.value) for s in node.conclusions.samples(600)] == [(catalog.NODE_UNUSED_PORTS, 0)]


def test_a_port_that_was_up_is_down_until_it_is_up_again() -> None:
    """For as long as it was last seen up, and only for six hours: then it was taken out of use, and is idle."""
    node = Node(lambda now: [rdma(up=not 100 < now <= 100 + 7 * HOUR)])
    assert node.run(101) == {}
    assert node.run(120) == {("node_port_down_seconds", "mlx5_0", "1"): 20}
    assert node.run(95 + 6 * HOUR, every=60) == {
        ("node_port_down_seconds", "mlx5_0", "1"): pytest.approx(6 * HOUR, abs=60)
    }
    assert node.run(120 + 6 * HOUR, every=60) == {("node_unused_ports",): 1}
    assert node.run(200 + 7 * HOUR, every=60) == {}


def test_a_port_that_was_never_up_is_idle() -> None:
    """Rules know whether it was up before the exporter started."""
    assert Node(lambda _: [rdma(up=False), rdma("mlx5_1")]).run(300) == {
        ("node_unused_ports",): 1, ("node_port_never_up_seconds", "mlx5_0", "1"): 300,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("device", "rate", "missed"),
    [
        ("eno1", 1.1e6, True), ("eno1", 0.9e6, False), ("bond0", 2e6, True), ("enxb03af2b6059f", 1e8, False),
        ("ens5f1v6", 1e8, False), ("ibp24s0v1", 1e8, False), ("ens5f1np1", 2e6, True),
    ],
)  # fmt: skip
def test_ethernet_is_missed_where_it_carried_something(device: str, rate: float, missed: bool) -> None:
    """A megabyte a second over five minutes; never a BMC's USB port nor a virtual function. None counts as idle."""
    node = Node(lambda now: [ethernet(device, rate * min(now, 600), up=now < 7200)])
    assert node.run(7190) == {}
    found = node.run(7230)
    assert found == ({("node_port_down_seconds", device, ""): 35} if missed else {})


def test_what_cannot_be_read_any_more_is_not_known() -> None:
    """A minute after the last readings, and at once where a device is gone; nothing is missed that is not there."""
    node = Node(lambda now: [rdma(up=now < 50), *([rdma("mlx5_1")] if now < 100 else [])])
    assert node.run(110) == {("node_port_down_seconds", "mlx5_0", "1"): 65}
    assert dict(said(node.conclusions, 164)) == {("node_port_down_seconds", "mlx5_0", "1"): 119}
    assert list(node.conclusions.samples(166)) == []
    assert node.run(300) == {("node_port_down_seconds", "mlx5_0", "1"): 255}


def test_a_port_slower_than_before() -> None:
    """As a share of the highest speed of a day; a port that is down has no speed."""
    node = Node(lambda now: [rdma(speed=5e10 if now < 600 else 2.5e10, up=not 1200 <= now < 1300, board="")])
    assert node.run(600) == {}
    assert node.run(700) == {("node_port_speed_ratio", "mlx5_0", "1"): 0.5}
    assert node.run(1290) == {("node_port_down_seconds", "mlx5_0", "1"): 95}
    assert node.run(24 * HOUR + 590, every=30) == {("node_port_speed_ratio", "mlx5_0", "1"): 0.5}
    assert node.run(24 * HOUR + 1000, every=30) == {}


def test_a_port_slower_than_its_equals() -> None:
    """Than the median of the same port on the node's boards of one kind; a faster one makes nobody slow."""
    slow = ("node_port_speed_ratio", "mlx5_2", "1")
    node = Node(lambda _: [rdma(), rdma("mlx5_1"), rdma("mlx5_2", speed=1.25e10), rdma("x", board="N", speed=1e9)])
    assert node.run(60) == {slow: 0.25}
    others = Node(lambda _: [rdma(), rdma("mlx5_1", speed=2e11), rdma("mlx5_1", port="2", speed=1e9), rdma("mlx5_2")])
    assert others.run(60) == {}
    unknown = Node(lambda _: [rdma(board=""), rdma("mlx5_1", board="", speed=1e10), rdma("mlx5_2", board="")])
    assert unknown.run(60) == {}


def test_an_unknown_speed_is_no_slow_one() -> None:
    """Idle Ethernet devices have none, and some drivers say 0."""
    node = Node(lambda now: [rdma(speed=5e10 if now < 60 else 0.0), PortReading("eth0", "", up=True)])
    assert node.run(120) == {}


def test_errors_of_an_hour() -> None:
    """By kind; neither what was counted before the first look, nor a driver that counts anew."""
    node = Node(lambda now: [rdma(symbol=5000 + min(now, 600) * 0.1 if now < 2000 else 0.0, receive=3)])
    assert node.run(30) == {}
    assert node.run(1000) == {("node_port_recent_errors", "mlx5_0", "1", "symbol"): pytest.approx(60, abs=6)}
    assert node.run(3500) == {("node_port_recent_errors", "mlx5_0", "1", "symbol"): pytest.approx(60, abs=6)}
    assert node.run(4300) == {}


def test_errors_now() -> None:
    """From a thousand an hour on, over two minutes, of the kinds that say that packets are corrupted."""
    rate = 0.3
    node = Node(
        lambda now: [
            rdma(symbol=rate * min(now, 600)), rdma("mlx5_1", receive=2 * rate * min(now, 600)),
            rdma("mlx5_2", link_recovery=rate * min(now, 600)), rdma("mlx5_3", symbol=0.27 * min(now, 600)),
        ]
    )  # fmt: skip
    now = {key: value for key, value in node.run(600).items() if key[0] == "node_port_errors_per_second"}
    assert now == {
        ("node_port_errors_per_second", "mlx5_0", "1"): pytest.approx(0.3),
        ("node_port_errors_per_second", "mlx5_1", "1"): pytest.approx(0.6),
    }
    assert {key[0] for key in node.run(800)} == {"node_port_recent_errors"}


def test_details_are_not_read_each_time() -> None:
    """What was read of speed and errors stands until they are read again."""

    def ports(now: float) -> list[PortReading]:
        details = PortDetails(1e10 if now else 5e10, {"symbol": now}) if now % 30 == 0 else None
        return [PortReading("mlx5_0", "1", up=True, details=details)]

    found = Node(ports).run(625)
    assert found["node_port_speed_ratio", "mlx5_0", "1"] == 0.2
    assert found["node_port_errors_per_second", "mlx5_0", "1"] == pytest.approx(1, abs=0.25)


def test_a_page_says_whether_ports_can_be_read() -> None:
    """And shows nothing else while they cannot; readings are taken every few seconds."""

    class Reader:
        taken, word = 0, ""

        def take(self) -> list[PortReading] | None:
            self.taken += 1
            return None if self.word else [rdma(up=self.taken == 1)]

        def trouble(self) -> str:
            return self.word

    now, reader = [0.0], Reader()
    shown = ShownPorts(reader, lambda: now[0])
    for second in range(11):
        now[0] = float(second)
        shown.look()
    assert reader.taken == 3
    assert {(s.metric.name, *s.labels): s.value for s in shown.samples()} == {
        ("tachograph_node_unused_ports",): 0,
        ("tachograph_node_port_down_seconds", "mlx5_0", "1"): 10,
        ("tachograph_exporter_collector_success", "nic"): 1,
    }
    reader.word, now[0] = "hung", 100.0
    shown.look()
    assert {(s.metric.name, *s.labels): s.value for s in shown.samples()} == {
        ("tachograph_exporter_collector_success", "nic"): 0,
        ("tachograph_exporter_collector_unavailable_info", "nic", "hung"): 1,
    }
