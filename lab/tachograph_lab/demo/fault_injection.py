"""Faults injected into a real job while it runs: a control file lists them, and every rank reads it once per step.

| fault  | what happens in the job                                            | as in production                 |
|--------|--------------------------------------------------------------------|----------------------------------|
| slow   | one rank sleeps inside backward for a share of a step              | a throttled GPU, a noisy host    |
| spike  | all ranks' targets are permuted at random: loss and gradient rise  | a corrupt shard of data          |
| nan    | one rank's loss becomes NaN, which the all-reduce spreads to all   | an overflow, a bad sample        |
| hang   | one rank's loader worker stops delivering                          | a corrupt file, a dead mount     |
| killed | one rank gets SIGKILL                                              | the kernel's out-of-memory killer |

In a job that generates, `slow` is the time of a rank's samples, `hang` is in its reward function, and `engine-killed`
ends its engine.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SLOW, SPIKE, NAN, HANG, KILLED, ENGINE_KILLED = "slow", "spike", "nan", "hang", "killed", "engine-killed"
STOP = "stop"
"""Not a fault: the job ends normally the next time all ranks agree on whether to stop."""

HANG_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class InjectedFault:
    """A fault to inject: `rank` None means all ranks, `share` is the part of a step that a slow rank loses."""

    kind: str
    rank: int | None = None
    share: float = 0.6


class FaultControl:
    """Injects and heals faults; each change replaces the file, so that no rank reads half of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._faults: dict[str, InjectedFault] = {}

    def inject(self, fault: InjectedFault) -> None:
        """Inject a fault into the job; a second one of the same kind replaces the first."""
        self._faults[fault.kind] = fault
        self._write()

    def heal(self, kind: str) -> None:
        """Remove a fault."""
        self._faults.pop(kind, None)
        self._write()

    def stop(self) -> None:
        """Remove all faults, and have the job end."""
        self._faults = {STOP: InjectedFault(STOP)}
        self._write()

    def _write(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps([asdict(fault) for fault in self._faults.values()]), encoding="utf-8")
        fresh.replace(self.path)


class RankFaults:
    """The faults injected into one rank, as of the last `poll`, which costs one `stat` if nothing has changed."""

    def __init__(self, path: Path | None, rank: int) -> None:
        self._path = path
        self._rank = rank
        self._version = -1
        self._active: Mapping[str, InjectedFault] = {}

    def poll(self) -> None:
        """Read the control file again if it has been replaced since the last poll."""
        if self._path is None:
            return
        try:
            status = self._path.stat()
            if (version := status.st_mtime_ns ^ status.st_ino) == self._version:
                return
            given = [InjectedFault(**fields) for fields in json.loads(self._path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return
        self._version = version
        self._active = {fault.kind: fault for fault in given if fault.rank in (None, self._rank)}

    def get(self, kind: str) -> InjectedFault | None:
        """Return this rank's fault of a kind, None if it has none."""
        return self._active.get(kind)

    def polled(self, kind: str) -> InjectedFault | None:
        """Return the same as of now."""
        self.poll()
        return self.get(kind)

    def hang(self) -> None:
        """Block for as long as this rank has the fault `hang`."""
        while self.polled(HANG) is not None:
            time.sleep(HANG_POLL_SECONDS)


def slow_backward(activation: Tensor, seconds: float) -> None:
    """Make the backward pass sleep when the gradient of `activation` is ready."""

    def pause(gradient: Tensor) -> None:
        time.sleep(seconds)

    activation.register_hook(pause)


def corrupted(targets: Tensor, classes: int) -> Tensor:
    """Return permuted targets, permuted differently at every call, so that nothing can be learned from them."""
    import torch

    return torch.randperm(classes)[targets]


def kill(pid: int) -> None:
    """Send SIGKILL, as the kernel's out-of-memory killer does."""
    os.kill(pid, signal.SIGKILL)
