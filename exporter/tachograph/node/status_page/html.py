"""HTML of the pages for people: tables that a screen reader can follow, and text that others chose, escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import NamedTuple

from tachograph.node.api.problems import shortened
from tachograph.text import humanize
from tachograph.text.printable import printable

ABSENT = '<span class="soft" title="no reading">–</span>'
NAME_LENGTH = 64
"""Characters of a run's name that are shown: a rank may choose 128, and names differ at their beginning."""


class Cell(NamedTuple):
    """A cell: its column, its CSS classes (`n` for numbers, `wide` for a line of its own on a phone), its HTML."""

    column: str
    classes: str
    html: str


def template(package: str, name: str) -> Template:
    """Return the template of a page in a package, with the style that all pages have."""
    style = (files("tachograph.node.status_page") / "style.css").read_text(encoding="utf-8")
    text = (files(package) / name).read_text(encoding="utf-8")
    return Template(text.replace("$style", style))


def table(caption: str, rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table, nothing without rows; the first cell of each row is its heading. The caption is HTML."""
    rows = list(rows)
    if not rows:
        return ""
    head = "".join(f'<th scope="col"{_class(cell.classes)}>{cell.column}</th>' for cell in rows[0])
    body = "".join(f"<tr>{''.join(_cell(cell, first=not i) for i, cell in enumerate(row))}</tr>\n" for row in rows)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _cell(cell: Cell, *, first: bool) -> str:
    opening, tag = ('th scope="row"', "th") if first else ("td", "td")
    return f'<{opening}{_class(cell.classes)} data-name="{cell.column}">{cell.html}</{tag}>'


def _class(classes: str) -> str:
    return f' class="{classes}"' if classes else ""


def plain(text: str, longest: int = NAME_LENGTH) -> str:
    """Return a text that others chose as HTML: escaped, cut, and without characters that turn or hide what follows."""
    return escape(shortened(printable(text, "\N{REPLACEMENT CHARACTER}"), longest))


def name(text: str) -> str:
    """Return a name that others chose; its letters, whichever way they run, leave those around them alone."""
    return f"<bdi>{plain(text)}</bdi>"


def state(look: str, word: str) -> str:
    """Return a state: a shape and a colour (`good`, `warn`, `bad`, `idle`), and the word that says the same."""
    return f'<span class="state {look}">{escape(word)}</span>'


def note(html: str) -> str:
    """Return a line under what it explains."""
    return f'<span class="why">{html}</span>'


def shown(value: float | None, form: Callable[[float], str]) -> str:
    """Return a number; a dash where there is none, and one that is not finite so that it stands out."""
    if value is None:
        return ABSENT
    return form(value) if math.isfinite(value) else f'<strong class="bad">{humanize.count(value)}</strong>'


def bar(share: float) -> str:
    """Return a bar; the number it shows stands beside it."""
    return f'<span class="bar" aria-hidden="true"><i style="width:{min(max(share, 0), 1):.0%}"></i></span>'


def of(whole: float | None, form: Callable[[float], str]) -> str:
    """Return what a number is a part of."""
    return "" if whole is None else f' <span class="soft">of {form(whole)}</span>'
