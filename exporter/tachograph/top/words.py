"""Numbers as a tired person reads them: few digits, the unit beside them."""

from __future__ import annotations

import math
import time

ABSENT = "-"


def number(value: float | None) -> str:
    """Return a count: 48,201."""
    return _finite(value) or f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return a large number in three digits: 3.94M."""
    if odd := _finite(value):
        return odd
    assert value is not None
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= scale * 0.9995:
            divided = value / (1e3 if letter == "k" else scale)
            return f"{divided:.{max(0, 2 - int(math.log10(abs(divided))))}f}{letter}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def figure(value: float | None) -> str:
    """Return a loss: four digits."""
    return _finite(value) or f"{value:#.4g}"


def percent(value: float | None, digits: int = 0) -> str:
    """Return a share: 41%."""
    return _finite(value) or f"{100 * value:.{digits}f}%"  # type: ignore[operator]  # not None


def duration(seconds: float | None) -> str:
    """Return a time of a step or a wait: 12 ms, 8.13 s."""
    if odd := _finite(seconds):
        return odd
    assert seconds is not None
    if abs(seconds) < 0.9995:
        return f"{round(1000 * seconds)} ms"  # not "-0"
    return f"{seconds:.2f} s" if abs(seconds) < 10 else f"{seconds:.1f} s" if abs(seconds) < 100 else f"{seconds:.0f} s"


def age(seconds: float | None) -> str:
    """Return how long something lasts: 4 s, 12 min, 3.1 h."""
    if odd := _finite(seconds):
        return odd
    assert seconds is not None
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def gibibytes(count: float | None) -> str:
    """Return bytes in GiB, without the unit: 71.2."""
    return _finite(count) or f"{count / 2**30:.1f}"  # type: ignore[operator]  # not None


def clock(at: float) -> str:
    """Return a time of day in UTC."""
    return time.strftime("%H:%M:%SZ", time.gmtime(at))


def _finite(value: float | None) -> str:
    """Return the word for what is no number, empty for a number."""
    if value is None:
        return ABSENT
    return "" if math.isfinite(value) else "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
