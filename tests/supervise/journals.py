"""The journal of a supervised run, as tests read it."""

from __future__ import annotations

from pathlib import Path

from tachograph.supervise import journal


class Journalled:
    """Something supervised, and the folder that its supervisors write to."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def entries(self) -> list[journal.Entry]:
        path = self.state / journal.NAME
        return journal.read(path) if path.exists() else []

    def decisions(self) -> list[tuple[str, str, str]]:
        """Outcome, trigger, and what was decided or what held it back."""
        found = [one for one in self.entries() if one["kind"] == "decision"]
        return [(one["outcome"], one["trigger"], one["guard"] or one["action"]) for one in found]
