"""Writes a recording as the input series of a promtool test, compactly: repeats and even steps become one term each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from tachograph_lab.replay.recording import Recording
from tachograph_lab.replay.scraped import MISSING, STALE, ScrapedSeries, Values, is_a

DIGITS = 12
"""Significant digits of a fraction: enough for microseconds in a day's timestamps."""

WHOLE = 2**53
"""Whole numbers below this are written in full: two checksums may differ by one."""

_LINE = r"\n"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def write(recording: Recording, file: TextIO) -> None:
    """Write all series as one of promtool's `input_series`, in JSON, which is YAML.

    promtool puts series and values unchanged on a line of a text that it then loads, and each new entry copies all
    earlier ones: with 100,000 entries that is most of its time. So there is one entry, and lines in it are the series.
    """
    file.write('{"series":"","values":"')
    for number, one in enumerate(recording.series()):
        name = json.dumps(selector(one), ensure_ascii=False)[1:-1]
        file.write(f"{_LINE if number else ''}{name} {values(one.values, recording.spacing, one.first)}")
    file.write('"}')


def selector(series: ScrapedSeries) -> str:
    """Return name and labels as PromQL writes them."""
    labels = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in series.labels.items())
    return f"{series.name}{{{labels}}}"


def values(numbers: Values, spacing: int = 1, first: int = 0) -> str:
    """Return a series' values in promtool's notation: `axn` and `_xn` for repeats, `a+bxn` for even steps.

    They are `spacing` steps of promtool's grid apart, from step `first` on; repeats cannot span gaps.
    """
    return " ".join(_words(numbers) if spacing == 1 else _with_gaps(numbers, spacing - 1, first))


def _words(numbers: Values) -> Iterator[str]:
    bits = numbers.view(np.uint64)
    edges = _edges(bits)
    if 2 * len(edges) > len(bits) and bool(np.all(np.isfinite(numbers) & (numbers == np.floor(numbers)))):
        yield from _steps(numbers)
        return
    missing, stale = is_a(MISSING, numbers).tolist(), is_a(STALE, numbers).tolist()
    plain = numbers.tolist()
    for start, end in pairwise(edges):
        word = "_" if missing[start] else "stale" if stale[start] else number(plain[start])
        yield from _repeated(word, end - start)


def _with_gaps(numbers: Values, gap: int, missing: int) -> Iterator[str]:
    """Yield each value, preceded by the number of steps without one."""
    for value, is_missing, is_stale in zip(
        numbers.tolist(), is_a(MISSING, numbers).tolist(), is_a(STALE, numbers).tolist(), strict=True
    ):
        if not is_missing:
            if missing:
                yield f"_x{missing}"
            yield "stale" if is_stale else number(value)
            missing = 0
        missing += gap + is_missing


def _edges(bits: NDArray[np.generic]) -> list[int]:
    """Return the start of each run of equal values, and the end."""
    return [0, *(np.flatnonzero(bits[1:] != bits[:-1]) + 1).tolist(), len(bits)]


def _repeated(word: str, times: int) -> Iterator[str]:
    """Yield a term `times` times: `_xn` is n missing values, `axn` is a and n more; `stale` has no such form."""
    if word == "_":
        yield f"_x{times}"
    elif times > 1 and word[-1].isdigit():
        yield f"{word}x{times - 1}"
    else:
        yield from [word] * times


def _steps(numbers: Values) -> Iterator[str]:
    """Yield whole numbers as runs of equal steps, which promtool adds up exactly."""
    steps = np.diff(numbers)
    edges = _edges(steps) if len(steps) else [0, 0]
    plain, by = numbers.tolist(), steps.tolist()
    at = 0
    for end in edges[1:]:
        # The values from `at` to `end` have equal steps; the last of them may have been written already.
        if end > at:
            yield f"{number(plain[at])}{'+' if by[at] >= 0 else '-'}{number(abs(by[at]))}x{end - at}"
            at = end + 1
    if at < len(plain):
        yield from map(number, plain[at:])


def number(value: float) -> str:
    """Return a number as promtool reads it."""
    if math.isfinite(value):
        return f"{value:.{DIGITS}g}" if value % 1 or abs(value) >= WHOLE else f"{value:.0f}"
    return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
