"""The analyses of runs that people asked for: one at a time, each in a process of its own, kept for a moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tachograph.blackbox.findings import Verdict, read_verdict
from tachograph.blackbox.served import ServedBox, ServedRank
from tachograph.node.evidence.request import Request
from tachograph.own_process import own_process

KEPT_SECONDS = 10.0
"""An analysis is shown to all who ask within so long after its end."""

LONGEST_SECONDS = 40.0
"""From the start of the process to its end: a part of it for the boxes of other nodes, the rest for thinking."""

REST = 3
"""After an analysis the next one waits this many times as long as it took, so that a storm of requests for many runs
costs a quarter of a core at most; the first person waits for nobody."""

LONGEST_REST_SECONDS = 15.0
MOST_WAITING = 8
MOST_KEPT = 16
LARGEST_REPORT = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Analysis:
    """The result of an analysis, at Unix time `time`; `trouble` says in words what kept it from being whole."""

    time: float
    verdict: Verdict
    where: Mapping[int, str]
    boxes: Mapping[int, ServedBox]
    ranks: Mapping[int, tuple[ServedRank, str]]
    """Every rank that an exporter knows, with the node it is on."""

    exporters: int
    silent: Mapping[str, str]
    """Exporters that did not answer, and why."""

    failed: Mapping[int, str]
    """Ranks whose box did not come, and why."""

    trouble: str


class AnalysisError(Exception):
    """There is no result; the text says why."""


class BusyError(AnalysisError):
    """Too many other runs are waiting."""


@dataclass
class _Kept:
    task: asyncio.Task[Analysis]
    ended: float | None = None


class Analyses:
    """Starts analyses and keeps their results; `clock` is monotonic, `wall` that of the day."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float],
        command: Sequence[str] | None = None,
        longest: float = LONGEST_SECONDS,
    ) -> None:
        self._longest = longest
        self._clock, self._wall = clock, wall
        self._command = command or own_process("tachograph.node.evidence.analyst")
        self._one = asyncio.Lock()
        self._kept: dict[str, _Kept] = {}
        self._resting: set[asyncio.Task[None]] = set()

    async def of(
        self, run: str, request: Callable[[], tuple[Request, Sequence[bytes]]], patience: float
    ) -> Analysis | None:
        """Return the analysis of a run, a kept one if it is young enough; None if it takes longer than `patience`.

        `request` is called once the analysis begins. Raise AnalysisError if there is no result, once.
        """
        kept = self._kept.get(run)
        if kept is None or (kept.ended is not None and self._clock() - kept.ended > KEPT_SECONDS):
            kept = self._begin(run, request)
        await asyncio.wait({kept.task}, timeout=patience)
        return kept.task.result() if kept.task.done() else None

    async def close(self) -> None:
        """End what is under way."""
        for tasks in ([kept.task for kept in self._kept.values()], self._resting):
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, run: str, request: Callable[[], tuple[Request, Sequence[bytes]]]) -> _Kept:
        if sum(not kept.task.done() for kept in self._kept.values()) >= MOST_WAITING:
            raise BusyError("the analyses of other runs are under way")
        for name in [name for name, kept in self._kept.items() if kept.task.done()][
            : max(0, len(self._kept) - MOST_KEPT)
        ]:
            del self._kept[name]
        kept = self._kept[run] = _Kept(asyncio.create_task(self._in_turn(request)))

        def end(task: asyncio.Task[Analysis]) -> None:
            kept.ended = self._clock()
            if not task.cancelled() and task.exception() is not None:
                _log.warning("analysis failed", extra={"run": run, "error": task.exception()})

        kept.task.add_done_callback(end)
        return kept

    async def _in_turn(self, request: Callable[[], tuple[Request, Sequence[bytes]]]) -> Analysis:
        await self._one.acquire()
        start = self._clock()
        try:
            return await self._analyze(*request())
        finally:
            rest = asyncio.create_task(self._rest(REST * (self._clock() - start)))
            self._resting.add(rest)
            rest.add_done_callback(self._resting.discard)

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.sleep(min(seconds, LONGEST_REST_SECONDS))
        finally:
            self._one.release()

    async def _analyze(self, request: Request, texts: Sequence[bytes]) -> Analysis:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            return await asyncio.wait_for(self._talk(process, request, texts), self._longest)
        except asyncio.TimeoutError:
            raise AnalysisError(f"it took longer than {self._longest:g} s") from None
        finally:
            await _end(process)

    async def _talk(self, process: asyncio.subprocess.Process, request: Request, texts: Sequence[bytes]) -> Analysis:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # it ended early: what it said so far shows why
            for text in (request.as_line(), *texts):
                process.stdin.write(text)
                await process.stdin.drain()
            process.stdin.close()
        parts, size = [], 0
        while chunk := await process.stdout.read(1 << 16):
            parts.append(chunk)
            size += len(chunk)
            if size > LARGEST_REPORT:
                raise AnalysisError("its result was too large")
        status = await process.wait()
        if status:
            raise AnalysisError(
                "it was ended, by its limit of time or memory"
                if status < 0
                else "it failed, by its limit of memory or a box"
            )
        try:
            return _read(json.loads(b"".join(parts)), self._wall())
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise AnalysisError("its result is unreadable") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process if it has not ended, and close its pipes."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    while process.stdout is not None and await process.stdout.read(1 << 16):
        pass
    await process.wait()


def _read(said: Mapping[str, Any], now: float) -> Analysis:
    ranks = {int(rank): dict(one) for rank, one in said["ranks"].items()}
    nodes = {rank: str(one.pop("node")) for rank, one in ranks.items()}
    return Analysis(
        now,
        read_verdict(said["verdict"]),
        {int(rank): where for rank, where in said["where"].items()},
        {int(rank): ServedBox(**box) for rank, box in said["boxes"].items()},
        {rank: (ServedRank(**one), nodes[rank]) for rank, one in ranks.items()},
        said["exporters"],
        said["silent"],
        {int(rank): why for rank, why in said["failed"].items()},
        said["trouble"],
    )
