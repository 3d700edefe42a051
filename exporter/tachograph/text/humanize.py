"""Numbers, durations, sizes and times as a person reads them: few digits, with the unit.

Every function returns `ABSENT` for None, and `NaN`, `Inf` or `-Inf` for a value that is not finite.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence

ABSENT = "-"
LAST_TIME = 253_402_300_799
"""The end of the year 9999, in Unix seconds: a rank may report any number as a time."""
SPAN_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def count(value: float | None) -> str:
    """Return a whole number: `48,201`."""
    return _not_finite(value) or f"{value:,.0f}"


def plural(number: float, noun: str, nouns: str | None = None) -> str:
    """Return a count of things: `1 rank`, `1,024 ranks`; `nouns` where more than one take more than an s."""
    return f"{count(number)} {noun if number == 1 else nouns or noun + 's'}"


def listed(names: Sequence[str], most: int = 4) -> str:
    """Return the first names of a list, and how many more there are: `0, 1 and 14 more`."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def suggestion(wrong: str, known: Collection[str]) -> str:
    """Return a hint for a name that is unknown: the nearest known one, else all."""
    return did_you_mean(wrong, known) or f"expected one of {', '.join(known)}"


def did_you_mean(wrong: str, known: Collection[str], alike: float = 0.6) -> str:
    """Return a hint for an option or a name that is unknown: the nearest known one, empty if none is so far `alike`."""
    from difflib import get_close_matches  # late: only a mistake needs it, and the exporter would carry it for good

    names = {name.lstrip("-"): name for name in known}  # the dashes that all options begin with make none alike
    near = get_close_matches(wrong.lstrip("-"), names, n=1, cutoff=alike)
    return f"did you mean {names[near[0]]}?" if near else ""


def short(value: float | None) -> str:
    """Return a large number in three digits: `3.94M`."""
    if value is None or not math.isfinite(value):
        return _not_finite(value)
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= scale * 0.9995:
            divided = value / (1e3 if letter == "k" else scale)
            return f"{divided:.{max(0, 2 - int(math.log10(abs(divided))))}f}{letter}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def significant(value: float | None, digits: int = 4, *, zeros: bool = True) -> str:
    """Return a number in significant digits, a loss for example: `2.300`; without trailing zeros: `2.3`."""
    return _not_finite(value) or (f"{value:#.{digits}g}" if zeros else f"{value:.{digits}g}")


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share of 1: `41%`."""
    return _not_finite(share) or f"{share:.{digits}%}"


def duration(seconds: float | None) -> str:
    """Return how long a step or a wait takes: `0.33 ms`, `12 ms`, `8.13 s`."""
    if seconds is None or not math.isfinite(seconds):
        return _not_finite(seconds)
    if 0.000_01 < seconds < 0.000_95:
        return f"{1000 * seconds:.2f} ms"
    if abs(seconds) < 0.9995:
        return f"{round(1000 * seconds)} ms"  # not "-0"
    return f"{seconds:.2f} s" if abs(seconds) < 10 else f"{seconds:.1f} s" if abs(seconds) < 100 else f"{seconds:.0f} s"


def age(seconds: float | None) -> str:
    """Return how long something has lasted, in one unit: `4.2 s`, `12 min`, `3.1 h`, `4 d`."""
    if seconds is None or not math.isfinite(seconds):
        return _not_finite(seconds)
    seconds = max(seconds, 0.0)
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def span(seconds: float | None) -> str:
    """Return a length of time in its two largest units: `1 h 30 min`."""
    if seconds is None or not math.isfinite(seconds):
        return _not_finite(seconds)
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{whole} s"
    first = next(i for i, (_, size) in enumerate(SPAN_UNITS) if whole >= size)
    parts = []
    for unit, size in SPAN_UNITS[first : first + 2]:
        number, whole = divmod(whole, size)
        parts += [f"{number} {unit}"] if number else []
    return " ".join(parts)


def hours(seconds: float | None) -> str:
    """Return a length of time in hours, without the unit: `1,204.5`."""
    return _not_finite(seconds) or f"{seconds / 3600:,.1f}"  # type: ignore[operator]  # None is not finite


def gibibytes(size: float | None) -> str:
    """Return a number of bytes in GiB, without the unit: `71.2`."""
    return _not_finite(size) or f"{size / 2**30:.1f}"  # type: ignore[operator]  # None is not finite


def byte_size(size: float) -> str:
    """Return a number of bytes in three digits: `3.28 MB`, `58 kB`, `12 B`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def celsius(degrees: float | None) -> str:
    """Return a temperature: `64 °C`."""
    return _not_finite(degrees) or f"{degrees:.0f} °C"


def watts(power: float | None) -> str:
    """Return a power: `655 W`."""
    return _not_finite(power) or f"{power:.0f} W"


def coordinates(numbers: Mapping[str, int], none: str = ABSENT) -> str:
    """Return where a rank is in its run's parallelism, in the words of the alerts: `dp 5, pp 1`."""
    return ", ".join(f"{dimension} {number}" for dimension, number in sorted(numbers.items())) or none


def utc(at: float, form: str = "%H:%M:%S") -> str:
    """Return a Unix time in UTC, `ABSENT` for one that is no date."""
    return time.strftime(form, time.gmtime(at)) if 0 <= at <= LAST_TIME else ABSENT


def _not_finite(value: float | None) -> str:
    """Return what to show in place of a number, empty for a finite number."""
    if value is None:
        return ABSENT
    return "" if math.isfinite(value) else "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
