"""The limits that a run sets for its own alerts."""

from __future__ import annotations

from tachograph.client.workload import amount
from tachograph.training_catalog import THRESHOLDS


class Thresholds:
    """Limits by name; the training thread sets them, the sender thread reads."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def set(self, name: object, value: object) -> bool:
        """Take one over; return False where the name is none of `THRESHOLDS` or the value cannot be right."""
        limit = amount(value)
        if limit is None or not isinstance(name, str) or name not in THRESHOLDS:
            return False
        if name.endswith("_ratio") and limit >= 1:  # a share of the step; 20 is meant as per cent, and would never fire
            return False
        self._values = {**self._values, name: limit}  # a new one, for the other thread may be reading
        return True

    def metrics(self) -> dict[str, object]:
        """Return the limits by wire key and name; nothing while none is set."""
        return {"threshold": self._values} if self._values else {}
