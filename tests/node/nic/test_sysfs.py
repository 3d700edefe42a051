"""Network ports as they are read from a sysfs, and that one file which cannot be read holds up nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tachograph.node.nic.port_reading import PortDetails, PortReading
from tachograph.node.nic.sysfs import read_ports
from tachograph.node.nic.sysfs_ports import SysfsPorts

FILES = {
    "class/infiniband/mlx5_0/board_id": "MT_0000000838",
    "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    "class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp",
    "class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
    "class/infiniband/mlx5_0/ports/1/counters/symbol_error": "3",
    "class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors": "2",
    "class/infiniband/mlx5_0/ports/1/counters/link_error_recovery": "1",
    "class/infiniband/mlx5_0/ports/1/counters/local_link_integrity_errors": "N/A (no PMA)",
    "class/infiniband/mlx5_0/ports/1/hw_counters/rx_icrc_encapsulated": "4",
    "class/infiniband/polls/ports/1/state": "4: ACTIVE",
    "class/infiniband/polls/ports/1/phys_state": "2: Polling",
    "class/infiniband/polls/ports/2/state": "1: DOWN",
    "class/net/eth0/operstate": "up",
    "class/net/eth0/speed": "100000",
    "class/net/eth0/statistics/rx_bytes": "123",
    "class/net/eth0/statistics/rx_errors": "5",
    "class/net/eth0/statistics/rx_frame_errors": "6",
    "class/net/eno1/operstate": "down",
    "class/net/eno1/speed": "-1",
    "class/net/bond0/operstate": "up",
    "class/net/bond0/statistics/rx_errors": "5",
    "class/net/docker0/operstate": "up",
    "class/net/lo/operstate": "unknown",
}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A sysfs with these files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    return tmp_path


def test_ports_of_a_node(sysfs: Path) -> None:
    """States, bytes a second, errors by kind; what a file does not say is absent. A bond's errors are its devices'."""
    assert read_ports(sysfs, fully=True) == [
        PortReading(
            "mlx5_0", "1", True, "MT_0000000838",
            details=PortDetails(5e10, {"symbol": 3, "receive": 2, "link_recovery": 1, "frame": 4}),
        ),
        PortReading("polls", "1", False, details=PortDetails(None, {})),
        PortReading("polls", "2", False, details=PortDetails(None, {})),
        PortReading("bond0", "", True, details=PortDetails(None, {})),
        PortReading("eno1", "", False, details=PortDetails(None, {})),
        PortReading("eth0", "", True, received=123, details=PortDetails(1.25e10, {"receive": 5, "frame": 6})),
    ]  # fmt: skip


def test_details_only_if_asked(sysfs: Path) -> None:
    """States and traffic alone otherwise."""
    assert all(port.details is None for port in read_ports(sysfs, fully=False))
    assert [port.received for port in read_ports(sysfs, fully=False)][-1] == 123


def test_no_sysfs(tmp_path: Path) -> None:
    """No ports, and no fault."""
    assert read_ports(tmp_path / "none", fully=True) == []


def taken(ports: SysfsPorts) -> list[PortReading]:
    """Return the next readings."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if (read := ports.take()) is not None:
            return list(read)
        time.sleep(0.01)
    raise AssertionError("no readings came")


def test_readings_are_taken_once(sysfs: Path) -> None:
    """Those of the next look are read anew; details come every 30 s."""
    now = [0.0]
    ports = SysfsPorts(sysfs, lambda: now[0])
    assert taken(ports)[0].details is not None
    (sysfs / "class/net/eno1/operstate").write_text("up\n")
    again = {port.device: port for port in taken(ports)}
    assert again["eno1"] == PortReading("eno1", "", True)
    now[0] = 30.0
    assert all(port.details is not None for port in taken(ports))
    assert ports.trouble() == ""


def test_an_adapter_that_hangs(sysfs: Path) -> None:
    """Is said after 15 s, and until its file has been read; meanwhile taking readings does not wait."""
    now = [0.0]
    state = sysfs / "class/infiniband/mlx5_0/ports/1/state"
    state.unlink()
    os.mkfifo(state)  # opening it waits for a writer
    ports = SysfsPorts(sysfs, lambda: now[0])
    assert ports.take() is None
    now[0] = 14.0
    assert (ports.take(), ports.trouble()) == (None, "")
    now[0] = 16.0
    assert (ports.take(), ports.trouble()) == (None, "hung")
    state.write_text("1: DOWN\n")
    assert not taken(ports)[0].up
    assert ports.trouble() == ""
