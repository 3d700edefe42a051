"""Several logs in one file, each below a header: what `tail` prints of many files, and dshbak or clush of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tachograph.logs.names import alone

_TAIL = re.compile(rb"^==> ([^\n]{1,400}) <==$", re.MULTILINE)
_DASHES = re.compile(rb"^-{15,16}\n([\w.,\[\]-]{1,400})\n-{15,16}$", re.MULTILINE)


class LogSection(NamedTuple):
    """Where a section begins in a block, and of which node and rank it is, as far as its header says."""

    begin: int
    node: str = ""
    rank: int | None = None


def headers(lines: Sequence[str]) -> re.Pattern[bytes] | None:
    """Return the form of the headers of a file that begins so, None for one log."""
    start = "\n".join(lines[:5]).strip().encode()
    return next((form for form in (_TAIL, _DASHES) if form.match(start)), None)


def sections(block: bytes, form: re.Pattern[bytes] | None) -> Iterator[LogSection]:
    """Yield the sections that begin in a block."""
    for header in form.finditer(block) if form else ():
        name = header[1].decode(errors="replace")
        if form is _DASHES:
            yield LogSection(header.start(), name if name.isascii() and not set(name) & set("[,]") else "")
        else:
            found = alone(Path(name), 0)
            yield LogSection(header.start(), found.node, found.rank)
