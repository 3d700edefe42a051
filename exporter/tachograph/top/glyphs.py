"""What a terminal can draw, and text that fits into columns of it."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from tachograph.printable import printable
from tachograph.top.sparkline import ASCII_BARS, BARS


@dataclass(frozen=True)
class Glyphs:
    """Characters beyond ASCII, or what stands for them."""

    bars: str
    rule: str
    dot: str
    more: str
    mark: str
    full: str
    empty: str
    degrees: str

    def fit(self, text: str, width: int, right: bool = False) -> str:
        """Return a text of exactly `width` cells, harmless whoever chose it."""
        text = printable(text)
        if cell_len(text) > width:
            text = set_cell_size(text, max(0, width - len(self.more))) + self.more[:width]
        gap = " " * (width - cell_len(text))
        return gap + text if right else text + gap

    def bar(self, share: float | None, width: int) -> str:
        """Return a bar of `width` cells."""
        if share is None:
            return " " * width
        filled = round(min(1.0, max(0.0, share)) * width)
        return self.full * filled + self.empty * (width - filled)


UNICODE = Glyphs(BARS, "─", " · ", "…", "▌", "█", "░", "°C")
ASCII = Glyphs(ASCII_BARS, "-", "  ", "~", "!", "#", ".", "C")


def glyphs_for(encoding: str) -> Glyphs:
    """Return what can be written in an encoding."""
    try:
        "".join((UNICODE.bars, UNICODE.rule, UNICODE.dot, UNICODE.more, UNICODE.mark, UNICODE.full)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE
