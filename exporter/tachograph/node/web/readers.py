"""Who reads the exporter's pages: a uid by the kernel, a password or certificate by web.config.file, else a stranger.

Loopback is no identity: any user of the node, and any web page by a name that resolves to it, can connect from there.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

SO_PEERGROUPS = 59
"""Linux 4.13; Python does not name it."""

MOST_GROUPS = 256
"""Of one peer: Python takes no longer answer. Of a process with more, its first group alone counts."""

_CREDENTIALS = struct.Struct("3i")
_ID = struct.Struct("I")
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")


@dataclass(frozen=True)
class Reader:
    """A reader: `share` is what of the exporter is its own, `uid` its user by the kernel, None for others."""

    share: str
    uid: int | None = None
    reads_all: bool = False

    @property
    def is_stranger(self) -> bool:
        """Whether nothing says who this is."""
        return self.uid is None and not self.reads_all

    def may_read(self, owner: int | None) -> bool:
        """Return whether the reader may have what is private of the runs of a uid."""
        return self.reads_all or (owner is not None and owner == self.uid)


STRANGER = Reader("")


class SiteReaders(NamedTuple):
    """The users and groups that the site lists as readers of everything."""

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()


NO_READERS = SiteReaders()


class PeerUser(NamedTuple):
    """The user and the groups of the process at the other end of a unix socket; `uid` is None for one unknown here."""

    uid: int | None
    gids: frozenset[int]

    @classmethod
    def of(cls, sock: socket.socket) -> PeerUser:
        """Return what the kernel says."""
        _, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        groups = b""
        with suppress(OSError):  # an older kernel, or more groups
            groups = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MOST_GROUPS * _ID.size)
        also = (one for (one,) in _ID.iter_unpack(groups))
        return cls(None if uid == _overflow_uid() else uid, frozenset((gid, *also)))

    def reader(self, site: SiteReaders) -> Reader:
        """Return the reader that this user is: root, this exporter's own user and the site's readers may read all."""
        if self.uid is None:
            return Reader("uid unknown")
        listed = self.uid in site.uids or not site.gids.isdisjoint(self.gids)
        return Reader(f"uid {self.uid}", self.uid, listed or self.uid in (0, os.geteuid()))


def read_site_readers(text: str) -> SiteReaders:
    """Return the readers in `alice,1005,%oncall,%2000`; raise ValueError for a name that this node does not know."""
    uids: set[int] = set()
    gids: set[int] = set()
    for word in (part.strip() for part in text.split(",") if text):
        name = word.removeprefix("%")
        try:
            if name.isascii() and name.isdecimal():
                (gids if word != name else uids).add(int(name))
            elif word != name:
                gids.add(grp.getgrnam(name).gr_gid)
            else:
                uids.add(pwd.getpwnam(name).pw_uid)
        except KeyError as error:
            raise ValueError(word) from error
    return SiteReaders(frozenset(uids), frozenset(gids))


@cache
def _overflow_uid() -> int:
    """Return as what every uid appears that is of another user namespace."""
    try:
        return int(_OVERFLOW.read_text())
    except (OSError, ValueError):  # no /proc
        return 65534
