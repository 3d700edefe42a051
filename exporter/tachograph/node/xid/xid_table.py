"""The table of Xids, with meaning and action of each: the data file `xids.csv`, read and checked."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tachograph.catalog.gpu import XID_ACTIONS

DATA = Path(__file__).with_name("xids.csv")
COLUMNS = ("xid", "pages", "action", "meaning", "source")
UNKNOWN_ACTION = XID_ACTIONS[-1]

_VERSION = re.compile(r"# version (\d{4}-\d{2}-\d{2}): \S")
_PAGES = {"yes": True, "no": False}


class XidTableError(ValueError):
    """The data file cannot be used; the message names file and line."""


@dataclass(frozen=True)
class XidRow:
    """One row: whether it pages by itself, what to do (one of XID_ACTIONS), what it means, and the source."""

    number: int
    pages: bool
    action: str
    meaning: str
    source: str


@dataclass(frozen=True)
class XidTable:
    """All known Xids; `version` is the date of the data, `paging` are those that page, in order."""

    version: str
    rows: Mapping[int, XidRow]
    paging: tuple[int, ...]

    def of(self, number: int) -> XidRow:
        """Return an Xid's row; one that is not in the table does not page."""
        # Neither "ignore" nor "application": a driver newer than the table may mean anything, and whoever reads the
        # alert shall look it up instead of trusting a guess of ours.
        unlisted = f"not in the table of {self.version}: see NVIDIA's Xid catalog"
        return self.rows.get(number) or XidRow(number, False, UNKNOWN_ACTION, unlisted, "")


def load(path: Path = DATA) -> XidTable:
    """Read the data file; raise XidTableError at its first fault."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(file)
    version = _VERSION.match(lines[0]) if lines else None
    if version is None:
        raise XidTableError(f'{path}:1: expected "# version YYYY-MM-DD: what it is"')
    rows: dict[int, XidRow] = {}
    header = False
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            continue
        try:
            cells = next(csv.reader([line.rstrip("\r\n")], strict=True), [])
            if not header:
                if tuple(cells) != COLUMNS:
                    raise ValueError(f"expected the columns {','.join(COLUMNS)}")
                header = True
                continue
            row = _row(cells)
            if row.number <= max(rows, default=0):
                raise ValueError(f"Xid {row.number} is out of order or given twice")
        except (ValueError, csv.Error) as error:
            raise XidTableError(f"{path}:{number}: {error}") from None
        rows[row.number] = row
    if not rows:
        raise XidTableError(f"{path}:{len(lines)}: ends without a row")
    paging = tuple(number for number, row in rows.items() if row.pages)
    return XidTable(version[1], MappingProxyType(rows), paging)


def _row(cells: list[str]) -> XidRow:
    if len(cells) != len(COLUMNS):
        raise ValueError(f"expected {len(COLUMNS)} columns, found {len(cells)}")
    number, pages, action, meaning, source = cells
    if not re.fullmatch(r"[1-9]\d{0,4}", number):
        raise ValueError(f"xid {number!r} is not a positive number")
    if pages not in _PAGES:
        raise ValueError(f"pages {pages!r} is neither yes nor no")
    if action not in XID_ACTIONS:
        raise ValueError(f"action {action!r} is none of {', '.join(XID_ACTIONS)}")
    if not meaning or not source:
        raise ValueError("meaning and source must not be empty")
    return XidRow(int(number), _PAGES[pages], action, meaning, source)
