"""The sentences about findings that more than one screen shows."""

from __future__ import annotations

from tachograph.text.humanize import age, duration, percent

SAID_SECONDS = 10.0
"""A finding's duration is part of its sentence from then on."""


def data_wait(data_seconds: float, step_seconds: float, seconds: float | None, *, workers: bool = True) -> str:
    """Return that much of each step is spent waiting for data, and for how long; `workers`: the loader has some."""
    share = percent(min(data_seconds / step_seconds, 1.0))
    of = f"{share} of each step ({duration(data_seconds)} of {duration(step_seconds)})"
    loader = "" if workers else " (num_workers=0)"
    if seconds is None or seconds < SAID_SECONDS:
        return f"{of} is spent waiting for data{loader}."
    return f"for {age(seconds)}, {of} has been spent waiting for data{loader}."
