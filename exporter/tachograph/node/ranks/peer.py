"""Who is at the other end of a connection."""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """A process of this node, by the kernel's word (SO_PEERCRED)."""

    uid: int
    pid: int
