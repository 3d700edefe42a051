"""A rank's steps as a file: what `tachograph compare` needs for a run that no Prometheus has seen, as in CI.

    from tachograph.export.step_file import StepFile

    steps = StepFile("steps.jsonl")
    recorder = tachograph.Recorder(run="llama-7b", trace=steps, sinks=[steps])

`tachograph run --steps FILE` does the same for a script that has no recorder. One JSON object a line: who it is, then
each ordinary step, what was logged with it, and about once a second totals and memory (docs/regressions.md).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from math import isfinite
from pathlib import Path
from typing import IO

from tachograph.catalog.rank import OWN_PHASES
from tachograph.client.core.notice import notice
from tachograph.client.core.steps import StepRecord
from tachograph.client.hello.identity import Identity
from tachograph.client.signals.ordinary_steps import OrdinarySteps

VERSION = 1
MAX_BYTES = 256 << 20
"""Beyond it nothing more is written: a million steps, which a comparison does not need."""

KEPT = (
    "tokens_total", "samples_total", "flops_total", "steps_total",
    "memory_peak_bytes", "memory_reserved_bytes", "host_memory_bytes",
)  # fmt: skip
LOGGED = ("loss", "val_loss", "grad_norm")


class StepFile:
    """Writes the steps of rank 0, whose length all ranks share, or of every rank if the path has `{rank}` in it.

    An existing file is replaced when the first recorder begins, and continued by later ones of the same process. A
    full disk, or a path that cannot be written, is logged once and costs the file alone.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._ordinary = OrdinarySteps()
        self._file: IO[str] | None = None
        self._begun = False

    def start(self, identity: Identity) -> None:
        """Open the file and write who this is; the Recorder calls it."""
        self._ordinary = OrdinarySteps()
        if identity.rank != 0 and "{rank}" not in self._path:
            return
        path = Path(self._path.replace("{rank}", str(identity.rank)))
        try:
            self._file = path.open("a" if self._begun else "w", encoding="utf-8")
        except OSError as error:
            notice("steps", f"no steps are written to {path}", error)
            return
        self._begun = True
        self._write({
            "tachograph_steps": VERSION, "run": identity.run, "rank": identity.rank, "attempt": identity.attempt,
            "world_size": identity.world_size, "time": time.time(),
        })  # fmt: skip

    def phase(self, inner: AbstractContextManager[None], name: str) -> AbstractContextManager[None]:
        """Return the phase as it is: steps carry what their phases took."""
        return inner

    def observe(self, record: StepRecord) -> None:
        """Write a step if it is an ordinary one: no save, evaluation or first step."""
        if (cost := self._ordinary.cost(record)) is None:
            return
        phases = {name: round(seconds, 7) for name, seconds in zip(OWN_PHASES, cost.own, strict=True) if seconds}
        self._write(
            {"step": record.number, "seconds": round(cost.seconds, 7), "wait": round(cost.wait, 7), "phases": phases}
        )

    def logged(self, step: int, values: Mapping[str, float]) -> None:
        """Write what was logged with a step; what is not finite is left out."""
        if kept := {name: values[name] for name in LOGGED if name in values and isfinite(values[name])}:
            self._write({"step": step, "logged": kept})

    def write(self, time: float, step: int, metrics: Mapping[str, float]) -> None:
        """Write totals and memory."""
        kept = {name: metrics[name] for name in KEPT if name in metrics and isfinite(metrics[name])}
        self._write({"time": time, "next_step": step, "totals": kept})

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write(self, line: Mapping[str, object]) -> None:
        if self._file is None:
            return
        try:
            if self._file.tell() > MAX_BYTES:
                raise OSError(f"{self._path} has {MAX_BYTES >> 20} MiB")
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()  # a forked child has nothing to write again
        except OSError as error:
            notice("steps file", "no more steps are written", error)
            with suppress(OSError):
                self.close()
