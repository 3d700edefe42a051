"""The last checkpoints of a run, as its journal has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tachograph.supervise.journal import CHECKPOINT, INTENT, Entry

KEPT = 8


@dataclass
class CheckpointMemory:
    """The checkpoints that all ranks have saved, by step, the newest last.

    `put_aside` are step and time of those after a step that the run was sent back to: the loop finds them no more.
    """

    by_step: dict[int, Entry] = field(default_factory=dict)
    put_aside: set[tuple[int, float]] = field(default_factory=set)

    def take(self, entry: Entry) -> None:
        """Take one more entry into account."""
        if entry["kind"] == CHECKPOINT:
            self._save(entry)
        elif entry["kind"] == INTENT and entry.get("resume_step") is not None:
            self._go_back(entry["resume_step"])

    def path(self, step: int | None) -> str:
        """Return where the checkpoint of a step is, empty where that is not known."""
        return "" if step is None or step not in self.by_step else str(self.by_step[step]["path"])

    def _save(self, entry: Entry) -> None:
        """Note a checkpoint, or what has become known of one; an earlier step than before is after a step back."""
        step, known = entry["checkpoint"], self.by_step
        if step not in known or known[step]["saved"] != entry["saved"]:
            self.by_step = {one: known[one] for one in known if one < step}
        self.by_step[step] = entry
        if len(self.by_step) > KEPT:  # the suspect go first: a loss may be in trouble for many saves
            suspect = (one for one, each in self.by_step.items() if each["suspect"] and one != step)
            del self.by_step[next(suspect, min(self.by_step))]

    def _go_back(self, step: int) -> None:
        after = [one for one in self.by_step if one > step]
        self.put_aside |= {(one, self.by_step.pop(one)["saved"]) for one in after}
