"""An alert's time, from its first firing to its end: what rules make of a recording, and Alertmanager is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Firing(NamedTuple):
    """An alert that fired from second `start` until `end` (None: to the last); annotations as of the start."""

    labels: Mapping[str, str]
    start: float
    end: float | None
    annotations: Mapping[str, str]

    @property
    def alert(self) -> str:
        """The alert's name."""
        return self.labels["alertname"]
