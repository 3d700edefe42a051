"""The limits that a run sets for its own alerts."""

from __future__ import annotations

from tachograph.catalog.rank import THRESHOLDS
from tachograph.client.core.arguments import one_of
from tachograph.client.hello.workload import amount


class Thresholds:
    """Limits by name; the training thread sets them, the sender thread reads."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def set(self, name: object, value: object) -> bool:
        """Take one over; return False where the name is none of `THRESHOLDS` or the value cannot be right."""
        limit = amount(value)
        known = one_of(THRESHOLDS, name)
        if limit is None or known is None:
            return False
        if known.endswith("_ratio") and limit >= 1:  # a share of the step; 20 is meant as per cent, and never fires
            return False
        self._values = {**self._values, known: limit}  # a new one, for the other thread may be reading
        return True

    def metrics(self) -> dict[str, object]:
        """Return the limits by wire key and name; nothing while none is set."""
        return {"threshold": self._values} if self._values else {}
