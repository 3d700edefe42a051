"""The plan of an attempt, for the training loop: which attempt this is, why, and the checkpoint to go back to.

As variables, which `Recorder.resume` reads, and as a file for whatever else starts the loop.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tachograph.client.hello.plan import (
    ATTEMPT_ENVIRONMENT,
    CHECKPOINT_ENVIRONMENT,
    CLIPPING_ENVIRONMENT,
    RATE_ENVIRONMENT,
    REASON_ENVIRONMENT,
    SKIP_ENVIRONMENT,
    STEP_ENVIRONMENT,
)
from tachograph.files import atomic_file

FILE_ENVIRONMENT = "TACHOGRAPH_PLAN"
VERSION = 1


@dataclass(frozen=True)
class AttemptPlan:
    """The number of the attempt, from 0; the trigger that ended the last one; the step to go back to, if one is known.

    `action` is that of the policy, such as restart; both it and `reason` are empty for an attempt that somebody began.
    """

    run: str
    attempt: int
    action: str = ""
    reason: str = ""
    step: int | None = None
    checkpoint: str = ""
    """Where the checkpoint of that step is, as the loop said it."""
    skip: tuple[tuple[int, int], ...] = ()
    """Ranges of steps that are left out, without their ends."""
    rate: float = 1.0
    clipping: float = 1.0
    """The factors of the learning rate, and of the norm that gradients are clipped to."""

    def environment(self, folder: Path) -> dict[str, str]:
        """Write the file and return the variables that hand the plan to the training; on a full disk, without it."""
        path = folder.absolute() / f"plan-{self.attempt}.json"
        try:
            atomic_file.replace(path, json.dumps({"version": VERSION, **asdict(self)}).encode() + b"\n", 0o600)
        except OSError:  # the variables have the same plan
            path = Path()
        return {
            FILE_ENVIRONMENT: "" if path == Path() else str(path),
            "TACHOGRAPH_RUN": self.run,
            ATTEMPT_ENVIRONMENT: str(self.attempt),
            REASON_ENVIRONMENT: self.reason,
            STEP_ENVIRONMENT: "" if self.step is None else str(self.step),
            CHECKPOINT_ENVIRONMENT: self.checkpoint,
            SKIP_ENVIRONMENT: ",".join(f"{begin}:{end}" for begin, end in self.skip),
            RATE_ENVIRONMENT: f"{self.rate:g}",
            CLIPPING_ENVIRONMENT: f"{self.clipping:g}",
        }
