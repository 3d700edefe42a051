"""HTML and SVG elements; every text in them is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tachograph.text.printable import printable


def safe(words: str) -> str:
    """Return a text escaped, without control characters or changes of writing direction."""
    return escape(printable(words, "\N{REPLACEMENT CHARACTER}"))


def number(value: object) -> str:
    """Return a coordinate to a tenth, anything else unchanged."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def element(tag: str, content: str = "", /, **attributes: object) -> str:
    """Return an element around markup. `_` in the name of an attribute becomes `-`; a trailing one is dropped."""
    given = "".join(f' {name.rstrip("_").replace("_", "-")}="{safe(number(at))}"' for name, at in attributes.items())
    return f"<{tag}{given}>{content}</{tag}>"


def text(words: str, x: float, y: float, **attributes: object) -> str:
    """Return a text at a position of a picture."""
    return element("text", safe(words), x=x, y=y, **attributes)


def table(caption: str, columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of markup; the first cell of each row is its heading. Cells of wide tables stack on a phone."""
    head = "".join(f'<th scope="col">{safe(column)}</th>' for column in columns)
    body = "\n".join(
        "<tr>"
        + "".join(f'<th scope="row">{cell}</th>' if not i else f"<td>{cell}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    stack = ' class="stack"' if len(columns) > 2 else ""
    return (
        f'<div class="scroll"><table{stack}><caption>{safe(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
