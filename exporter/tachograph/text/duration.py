"""Durations as people, Prometheus and Alertmanager write them."""

from __future__ import annotations

import re

_SECONDS = {"y": 31_536_000, "w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_WRITTEN = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in _SECONDS))
SCRAPE_SECONDS = (5, 30)
"""The shortest and the longest scrape interval: many rules look back one minute, which must hold two scrapes."""
_LONGEST = 2**63 / 1e9
"""The longest duration that Prometheus and Alertmanager can hold: 292 years."""


def parse(text: str, *, bare: bool = False) -> float:
    """Return the seconds of `20m`, `1h30m`, `0.5s` or `0`; raise ValueError.

    Any other number without a unit is refused, as 20 could be anything, unless `bare` allows it as seconds.
    """
    if text == "0" or (bare and re.fullmatch(_NUMBER, text)):
        seconds = float(text)
    elif text and (found := _WRITTEN.fullmatch(text)):
        seconds = sum(float(number) * size for number, size in zip(found.groups("0"), _SECONDS.values(), strict=True))
    else:
        raise ValueError(f"{text!r} is not a duration: write 20m, 90s or 1h30m")
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is longer than 292 years")
    return seconds


def scrape_interval(text: str) -> int:
    """Return the whole seconds of a scrape interval for which there are rules; raise ValueError."""
    seconds, (least, most) = parse(text), SCRAPE_SECONDS
    if not (seconds.is_integer() and least <= seconds <= most):
        raise ValueError(
            f"{text!r} is not a number of whole seconds from {least}s to {most}s; "
            "many rules look back one minute, which must hold two scrapes"
        )
    return int(seconds)
