"""Keys: what a terminal sends, and what each does to the wishes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tachograph.top.wishes import PANES, Pane, Wishes, next_sort

SEQUENCES: Mapping[str, str] = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1b[F": "end", "\x1bOH": "home", "\x1bOF": "end", "\x1b[1~": "home", "\x1b[4~": "end",
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace",
    "\x04": "q", "\x1b[Z": "tab",
}  # fmt: skip

_KEY = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1bO[A-Z]|.", re.DOTALL)

FAR = 1_000_000
"""Beyond the last row of any table."""


def decoded(text: str) -> Iterator[str]:
    """Yield the names of keys in what a terminal sent; sequences nobody uses are left out."""
    for match in _KEY.finditer(text):
        key = SEQUENCES.get(match[0], match[0])
        if len(match[0]) == 1 or match[0] in SEQUENCES:
            yield key


def pressed(wishes: Wishes, key: str, page: int, headings: Mapping[str, Sequence[str]]) -> Wishes:
    """Return the wishes after a key; `page` is the rows of a page, `headings` what each table can be sorted by."""
    if wishes.editing:
        return _typed(wishes, key)
    if wishes.help and key != "?":
        return replace(wishes, help=False)
    moves: Mapping[str, int] = {
        "up": -1, "down": 1, "k": -1, "j": 1, "page up": -page, "page down": page, "home": -FAR, "end": FAR
    }  # fmt: skip
    if key in moves:
        return wishes.with_pane(lambda pane: replace(pane, offset=min(FAR, max(0, pane.offset + moves[key]))))
    change = ACTIONS.get(key)
    if key == "s":
        own = headings[wishes.focus]
        return wishes.with_pane(lambda pane: Pane(next_sort(own, pane.sort)))
    return change(wishes) if change else wishes


def _typed(wishes: Wishes, key: str) -> Wishes:
    if key in {"enter", "escape"}:
        return replace(wishes, editing=False, filter=wishes.filter.strip() if key == "enter" else "")
    text = wishes.filter[:-1] if key == "backspace" else wishes.filter + key if len(key) == 1 else wishes.filter
    return replace(wishes, filter="".join(letter for letter in text if letter.isprintable()))


ACTIONS: Mapping[str, Callable[[Wishes], Wishes]] = {
    "r": lambda wishes: wishes.with_pane(lambda pane: replace(pane, turned=not pane.turned)),
    "/": lambda wishes: replace(wishes, editing=True, ranks=replace(wishes.ranks, offset=0)),
    " ": lambda wishes: replace(wishes, paused=not wishes.paused),
    "?": lambda wishes: replace(wishes, help=not wishes.help),
    "tab": lambda wishes: replace(wishes, focus=PANES[1 - PANES.index(wishes.focus)]),
    "escape": lambda wishes: replace(wishes, filter=""),
}
