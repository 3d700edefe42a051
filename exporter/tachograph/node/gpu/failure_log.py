"""Which failures are worth a line in the log: what flaps must not fill the disk, nor bury what else went wrong."""

from __future__ import annotations

STEADY_SECONDS = 60.0
"""How long a subject must be well before that is told, and before the same failure is told again."""

REASON_LIMIT = 8
"""How many reasons are told of one subject until it is well: a text that is never the same twice must not pile up."""


class _Failing:
    """A subject that was told to fail, and has not been told to be well."""

    def __init__(self) -> None:
        self.reasons: set[str] = set()
        self.well_since: float | None = None


class FailureLog:
    """Remembers what was told of each subject until it was well for a steady minute."""

    def __init__(self) -> None:
        self._failing: dict[str, _Failing] = {}

    @property
    def subjects(self) -> tuple[str, ...]:
        """What was told to fail, and has not been told to be well since."""
        return tuple(self._failing)

    def fails(self, subject: str, reason: str) -> bool:
        """Take note of a failure; return whether it is to be told."""
        failing = self._failing.setdefault(subject, _Failing())
        failing.well_since = None
        if reason in failing.reasons or len(failing.reasons) >= REASON_LIMIT:
            return False
        failing.reasons.add(reason)
        return True

    def unknown(self, subject: str) -> None:
        """Take note that nobody can tell how a subject is: its minute begins anew."""
        if subject in self._failing:
            self._failing[subject].well_since = None

    def well(self, subject: str, now: float) -> bool:
        """Take note that a subject is well; return whether that is to be told: once, if it was told to fail."""
        failing = self._failing.get(subject)
        if failing is None:
            return False
        if failing.well_since is None:
            failing.well_since = now
        if now - failing.well_since < STEADY_SECONDS:
            return False
        del self._failing[subject]
        return True
