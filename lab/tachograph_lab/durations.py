"""Durations as Prometheus and Alertmanager write them, and scenarios, too, which may have fractions."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}


def seconds(text: str) -> float:
    """Return a duration such as `1h3m20s` in seconds; what is no part of one is passed over."""
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)(ms|[smhdwy])", text))
