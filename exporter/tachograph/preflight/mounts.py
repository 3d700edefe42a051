"""The filesystem that a folder is on."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")


class Mount(NamedTuple):
    """A mounted filesystem: where, of which type, from where, and whether it is mounted read-only."""

    point: str
    kind: str
    source: str
    read_only: bool


def mount_of(folder: str) -> Mount | None:
    """Return the mount that a folder is on; None where the kernel does not tell."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        path = os.path.realpath(folder)
    except OSError:
        return None
    best = None
    for line in lines:
        left, _, right = line.partition(" - ")
        own, rest = left.split(" "), right.split(" ")
        if len(own) < 6 or len(rest) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), own[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (
            best is None or len(point) >= len(best.point)
        ):  # of two at one place the later one hides the other
            options = f"{own[5]},{rest[2]}".split(",")
            best = Mount(point, rest[0], rest[1], "ro" in options)
    return best
