"""Faults to try the recovery with, each at a step: a program's, a machine's, and the data's.

The data's are there in every attempt: `bad_batch`, all of whose targets are masked, so that its loss is 0/0; and
`spike`, a corrupt batch, whose targets are wrong and which counts a million times. Its own update is no larger than
others, as Adam divides by the size of gradients; but Adam's first moment goes on into its direction for ten steps, and
its second makes all later updates tiny. Clipping prevents that: it spoils a run with `--clipping inf`.

The others are made once, by rank 1: `nan`, as of a GPU that computes wrongly; `kill`; `hang`, in the phase data;
`corrupt`: its newest checkpoint is cut short, and then it is killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

OF_DATA = ("bad_batch", "spike")
KINDS = (*OF_DATA, "nan", "kill", "hang", "corrupt")
MASKED = -100
"""The target that does not count."""

WRONG_WEIGHT = 1e6


class Faults:
    """Faults such as `kill@130`; when each is made first is left in a file of the folder, `fault-kill@130`."""

    def __init__(self, given: Sequence[str], folder: Path, rank: int) -> None:
        self._at: dict[int, str] = {}
        self._folder, self._rank = folder, rank
        for text in given:
            kind, _, step = text.partition("@")
            if kind not in KINDS or not step.isdecimal():
                raise ValueError(f"{text}: expected KIND@STEP, with one of {', '.join(KINDS)}")
            if kind in OF_DATA or (rank == 1 and not self._file(kind, int(step)).exists()):
                self._at[int(step)] = kind

    def before(self, step: int, targets: Tensor) -> None:
        """Die, hang or spoil the targets of a bad batch, if that is due."""
        kind = self._at.get(step, "")
        if self._rank == 1 and kind and not self._file(kind, step).exists():
            self._file(kind, step).write_text(f"{time.time()}")
        if kind == "bad_batch":
            targets.fill_(MASKED)
        elif kind == "spike":
            targets.copy_(torch.randperm(256, generator=torch.Generator().manual_seed(step))[targets])
        elif kind == "hang":
            time.sleep(3600.0)
        elif kind == "corrupt":
            saved = [path for path in (self._folder / "checkpoints").iterdir() if path.name.isdecimal()]
            newest = max(saved, key=lambda path: int(path.name))
            for file in newest.glob("*.distcp"):
                os.truncate(file, file.stat().st_size // 2)
        if kind in ("kill", "corrupt"):
            os.kill(os.getpid(), signal.SIGKILL)

    def weight(self, step: int) -> float:
        """Return what this rank's loss is multiplied by."""
        return {"spike": WRONG_WEIGHT, "nan": float("nan")}.get(self._at.get(step, ""), 1.0)

    def _file(self, kind: str, step: int) -> Path:
        return self._folder / f"fault-{kind}@{step}"
