"""Decides which failures are logged: one that flaps must neither fill the disk nor bury the others."""

from __future__ import annotations

STEADY_SECONDS = 60.0
"""How long a subject must be well before that is logged, and before the same failure is logged again."""

REASON_LIMIT = 8
"""How many reasons are logged for one subject until it is well: a text that always differs must not pile up."""


class _Failing:
    """A subject whose failure was logged, and whose recovery was not."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()
        self.well_since: float | None = None


class FailureLog:
    """Remembers what was logged for each subject until it has been well for a minute."""

    def __init__(self) -> None:
        self._failing: dict[str, _Failing] = {}

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects whose failure was logged, and whose recovery was not."""
        return tuple(self._failing)

    def fails(self, subject: str, reason: str) -> bool:
        """Take note of a failure; return whether to log it."""
        failing = self._failing.setdefault(subject, _Failing())
        failing.well_since = None
        if reason in failing.reasons or len(failing.reasons) >= REASON_LIMIT:
            return False
        failing.reasons.add(reason)
        return True

    def unknown(self, subject: str) -> None:
        """Take note that the state of a subject is unknown: its minute starts again."""
        if subject in self._failing:
            self._failing[subject].well_since = None

    def well(self, subject: str, now: float) -> bool:
        """Take note that a subject is well; return whether to log it: once, if its failure was logged."""
        failing = self._failing.get(subject)
        if failing is None:
            return False
        if failing.well_since is None:
            failing.well_since = now
        if now - failing.well_since < STEADY_SECONDS:
            return False
        del self._failing[subject]
        return True
