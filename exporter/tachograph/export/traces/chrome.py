"""Traces as a file that Perfetto (https://ui.perfetto.dev) and chrome://tracing open: the Trace Event Format.

The array is never closed, which the format allows: a file of a killed process opens like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tachograph.client.hello.identity import Identity
from tachograph.export.traces.spans import Span

MAX_BYTES = 64 * 2**20
"""Perfetto opens this in seconds. Beyond it the file is begun anew, and the last one is kept as `<path>.1`."""


class ChromeTrace:
    """Writes one file for one rank; files of several ranks can be put together, each rank is a process of its own.

    Raises OSError where the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Identity, max_bytes: int = MAX_BYTES) -> None:
        self._path = Path(path)
        self._identity = identity
        self._max_bytes = max_bytes
        self._open()

    def write(self, steps: Span, phases: Iterable[Span], facts: Mapping[str, object], unix: float) -> None:
        """Write a step and what lies in it; `unix` is what makes perf_counter's seconds Unix ones."""
        lines = [
            self._event(steps, facts, unix),
            *(self._event(phase, {"step": facts["step"]}, unix) for phase in phases),
        ]
        if self._file.tell() > self._max_bytes:
            self._file.close()
            self._path.replace(f"{self._path}.1")
            self._open()
        self._file.write("".join(line + ",\n" for line in lines))
        self._file.flush()

    def close(self) -> None:
        """Close the file; OSError where the last bytes do not fit."""
        self._file.close()

    def _open(self) -> None:
        self._file = self._path.open("a", encoding="utf-8")
        who = self._identity
        name = {"name": f"{who.run} rank {who.rank} attempt {who.attempt}"}
        try:
            if self._file.tell() == 0:
                self._file.write("[\n")
            self._file.write(json.dumps({"ph": "M", "name": "process_name", "pid": who.rank, "args": name}) + ",\n")
            self._file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                self._file.close()
            raise

    def _event(self, span: Span, facts: Mapping[str, object], unix: float) -> str:
        event = {"ph": "X", "name": span.name, "pid": self._identity.rank, "tid": 0}
        event |= {"ts": round((unix + span.began) * 1e6, 1), "dur": round((span.ended - span.began) * 1e6, 1)}
        return json.dumps({**event, "args": {**facts, **({"failed": True} if span.failed else {})}})
