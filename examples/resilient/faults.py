"""Faults to try the recovery with, each at a step: a program's, a machine's, and the data's.

`bad_batch`: all targets of a batch are masked, so that its loss is 0/0, in every attempt. The others are of the first
attempt alone, and of rank 1: `nan`, as of a GPU that computes wrongly; `kill`; `hang`, in the phase data; `corrupt`:
its newest checkpoint is cut short, and then it is killed.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from torch import Tensor

KINDS = ("bad_batch", "nan", "kill", "hang", "corrupt")
MASKED = -100
"""The target that does not count."""


class Fault:
    """A fault such as `kill@130`, or none; when it happens is left in a file of the folder."""

    def __init__(self, text: str, folder: Path, rank: int, attempt: int) -> None:
        self._kind, _, at = text.partition("@")
        if text and self._kind not in KINDS:
            raise ValueError(f"{text}: expected KIND@STEP, with one of {', '.join(KINDS)}")
        self._at = int(at) if text else -1
        self._folder = folder
        self._is_here = rank == 1 and attempt == 0

    def before(self, step: int, targets: Tensor) -> None:
        """Die, hang or mask the targets of a bad batch, if that is due."""
        if step != self._at:
            return
        if self._kind == "bad_batch":
            targets.fill_(MASKED)
        if not self._is_here:
            return
        (self._folder / "fault").write_text(f"{time.time()}")
        if self._kind == "hang":
            time.sleep(3600.0)
        if self._kind == "corrupt":
            saved = [path for path in (self._folder / "checkpoints").iterdir() if path.name.isdecimal()]
            newest = max(saved, key=lambda path: int(path.name))
            for file in newest.glob("*.distcp"):
                os.truncate(file, file.stat().st_size // 2)
        if self._kind in ("kill", "corrupt"):
            os.kill(os.getpid(), signal.SIGKILL)

    def is_nan(self, step: int) -> bool:
        """Return whether this rank computes NaN."""
        return step == self._at and self._kind == "nan" and self._is_here
