"""Network ports as the kernel's sysfs has them: InfiniBand and RoCE below class/infiniband, Ethernet below class/net.

Of Ethernet only devices with names of hardware: enp…, eth…, ib…, bond…, hsn…, rdma…, roce…; not the links of pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tachograph.node.nic.port_reading import PortDetails, PortReading

HARDWARE = re.compile(r"en[oPpsx]|eth|ib|bond|hsn|rdma|roce")
BOND = "bond"
"""Counts the errors of its devices once more."""

RDMA_ERRORS = {
    "symbol": "counters/symbol_error", "receive": "counters/port_rcv_errors",
    "link_recovery": "counters/link_error_recovery", "integrity": "counters/local_link_integrity_errors",
    "frame": "hw_counters/rx_icrc_encapsulated",
}  # fmt: skip
ETHERNET_ERRORS = {"receive": "statistics/rx_errors", "frame": "statistics/rx_frame_errors"}
"""Files of counters by the kind of error. Kinds are never added up: one corruption can count as several."""


def read_ports(sysfs: Path, *, fully: bool) -> list[PortReading]:
    """Return the ports of a node; details only if asked, because each costs the firmware a command."""
    return [*_rdma(sysfs, fully), *_ethernet(sysfs, fully)]


def _rdma(sysfs: Path, fully: bool) -> Iterator[PortReading]:
    for device in _entries(sysfs / "class/infiniband"):
        board = _text(device / "board_id") or ""
        for port in _entries(device / "ports"):
            state, physical = _code(port / "state"), _code(port / "phys_state")
            if state is not None:
                up = state == "4" and physical in ("5", None)
                details = PortDetails(_rate(port), _counters(port, RDMA_ERRORS)) if fully else None
                yield PortReading(device.name, port.name, up, board, details=details)


def _ethernet(sysfs: Path, fully: bool) -> Iterator[PortReading]:
    for device in _entries(sysfs / "class/net"):
        state = _text(device / "operstate") if HARDWARE.match(device.name) else None
        if state is not None:
            received = _number(device / "statistics/rx_bytes")
            details = _ethernet_details(device) if fully else None
            yield PortReading(device.name, "", state == "up", received=received, details=details)


def _ethernet_details(device: Path) -> PortDetails:
    megabits = _number(device / "speed")  # the kernel refuses to read it of a device that is down
    errors = {} if device.name.startswith(BOND) else _counters(device, ETHERNET_ERRORS)
    return PortDetails(megabits * 1e6 / 8 if megabits is not None and megabits > 0 else None, errors)


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, by name; nothing if it is not there."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str | None:
    """Return what a file says; None if it cannot be read, as for a device that has just gone."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None


def _code(file: Path) -> str | None:
    """Return the number of a state: `4` of `4: ACTIVE`."""
    text = _text(file)
    return None if text is None else text.partition(":")[0]


def _number(file: Path) -> float | None:
    try:
        return float(_text(file) or "")
    except ValueError:
        return None


def _rate(port: Path) -> float | None:
    """Return the bytes a second of `400 Gb/sec (4X NDR)`."""
    found = re.match(r"([\d.]+) Gb/sec", _text(port / "rate") or "")
    return float(found[1]) * 1e9 / 8 if found else None


def _counters(folder: Path, files: dict[str, str]) -> dict[str, float]:
    values = {kind: _number(folder / name) for kind, name in files.items()}
    return {kind: value for kind, value in values.items() if value is not None}
