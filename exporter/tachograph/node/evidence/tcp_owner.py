"""Whose process is at the other end of a TCP connection of this machine, by the kernel's own table (proc_net(5))."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from pathlib import Path

ESTABLISHED = "01"
_LOCAL, _REMOTE, _STATE, _UID, _INODE = 1, 2, 3, 7, 9
_WORD_BYTES = 4
Address = tuple[object, ...]


def peer_uid(here: Address, there: Address, proc: Path = Path("/proc/self/net")) -> int | None:
    """Return the uid of the socket at the other end of a connection, None where that is not in the table.

    It must have been accepted, as it has once it answers: until then the table has uid 0 and no inode for it.
    """
    for name in ("tcp", "tcp6"):
        try:
            text = (proc / name).read_text(encoding="ascii")
        except OSError:  # no IPv6, or no /proc
            continue
        for line in text.splitlines()[1:]:
            field = line.split()
            ends = [_address(field[place]) for place in (_LOCAL, _REMOTE)]
            if ends == [_plain(there), _plain(here)] and field[_STATE] == ESTABLISHED and field[_INODE] != "0":
                return int(field[_UID])
    return None


def _address(text: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    """Return an address as the table has it: 32-bit words in the machine's order of bytes."""
    digits, _, port = text.partition(":")
    return _unmapped(ipaddress.ip_address(b"".join(_words(bytes.fromhex(digits))))), int(port, 16)


def _words(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _WORD_BYTES):
        word = data[start : start + _WORD_BYTES]
        yield word[::-1] if sys.byteorder == "little" else word


def _plain(address: Address) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    return _unmapped(ipaddress.ip_address(str(address[0]).partition("%")[0])), int(str(address[1]))


def _unmapped(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return getattr(address, "ipv4_mapped", None) or address
