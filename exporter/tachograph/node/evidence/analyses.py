"""The analyses of runs that people asked for: one at a time, each in a process of its own, kept while nothing changes.

Every asker has a share, for the runs of each owner: who has just had an analysis rests before the next one, and others
go first. Of those who wait, the site's readers come first, then whoever asks about a run in an incident.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

from tachograph.blackbox.findings import Verdict, read_verdict
from tachograph.blackbox.served import ServedBox, ServedRank
from tachograph.node.evidence.request import Request
from tachograph.processes.own_process import own_process

KEPT_SECONDS = 10.0
"""An analysis is shown to all who ask within so long after its end."""

SAME_SECONDS = 60.0
"""The same while nothing that it rests on has changed, as far as this node can tell."""

LONGEST_SECONDS = 40.0
"""From the start of the process to its end: a part of it for the boxes of other nodes, the rest for thinking."""

REST = 3
"""After an analysis its asker waits this many times as long as it took for the next one, and so takes a quarter of a
core at most."""

LONGEST_REST_SECONDS = 15.0
BURST_SECONDS = 20.0
"""All askers together, but the site's readers, may take so much at once, and then 1 s in every 1 + REST."""

MOST_OF_ASKER = 4
MOST_WAITING = 32
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
    """Too many analyses are waiting."""


class Asker(NamedTuple):
    """Who asks about a run of whom; the site's readers never wait for the others' rest."""

    share: str = ""
    owner: int | None = None
    is_site: bool = False


ANYBODY = Asker()


@dataclass(frozen=True)
class _Waiting:
    """An analysis that has not begun."""

    asker: Asker
    is_incident: bool
    number: int
    request: Callable[[], tuple[Request, Sequence[bytes]]]
    result: asyncio.Future[Analysis]

    @property
    def order(self) -> tuple[bool, bool]:
        """Smaller for what comes first."""
        return not self.asker.is_site, not self.is_incident


@dataclass
class _Kept:
    result: asyncio.Future[Analysis]
    content: Hashable
    ended: float | None = None


@dataclass
class _Rest:
    """When an asker had an analysis last, and until when the next one waits."""

    since: float
    until: float


@dataclass
class _Spent:
    """The seconds that analyses took, less what has been made good since."""

    seconds: float = 0.0
    at: float = 0.0

    def add(self, seconds: float, now: float) -> None:
        self.seconds, self.at = self.left(now) + seconds, now

    def left(self, now: float) -> float:
        return max(0.0, self.seconds - (now - self.at) / (1 + REST))

    def free_at(self, now: float) -> float:
        """Return when the next one may begin."""
        return now + max(0.0, self.left(now) - BURST_SECONDS) * (1 + REST)


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
        self._kept: dict[tuple[str, Hashable], _Kept] = {}
        self._waiting: list[_Waiting] = []
        self._numbers = count()
        self._rests: dict[Asker, _Rest] = {}
        self._spent = _Spent()
        self._added = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    async def of(
        self,
        run: str,
        request: Callable[[], tuple[Request, Sequence[bytes]]],
        patience: float,
        asker: Asker = ANYBODY,
        *,
        seen: Hashable = None,
        content: Hashable = None,
        is_incident: bool = False,
    ) -> Analysis | None:
        """Return the analysis of a run, a kept one if it is young enough; None if it takes longer than `patience`.

        `seen` tells apart what different readers may see; `content` is what it rests on, None where
        nobody here knows. `request` is called once the analysis begins. Raise AnalysisError, once, if there is no
        result.
        """
        key = run, seen
        kept = self._kept.get(key)
        if kept is None or not self._is_good(kept, content):
            kept = self._begin(key, _Waiting(
                asker, is_incident, next(self._numbers), request, asyncio.get_running_loop().create_future()
            ), content)  # fmt: skip
        else:
            self._hurry(kept, asker, is_incident=is_incident)
        await asyncio.wait({kept.result}, timeout=patience)
        return kept.result.result() if kept.result.done() else None

    async def close(self) -> None:
        """End what is under way."""
        for kept in self._kept.values():
            kept.result.cancel()
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def _is_good(self, kept: _Kept, content: Hashable) -> bool:
        if kept.ended is None:
            return True
        is_same = content is not None and content == kept.content
        return self._clock() - kept.ended <= (SAME_SECONDS if is_same else KEPT_SECONDS)

    def _begin(self, key: tuple[str, Hashable], waiting: _Waiting, content: Hashable) -> _Kept:
        self._make_room(waiting)
        for name in [name for name, kept in self._kept.items() if kept.ended is not None][
            : max(0, len(self._kept) - MOST_KEPT)
        ]:
            del self._kept[name]
        kept = self._kept[key] = _Kept(waiting.result, content)

        def end(result: asyncio.Future[Analysis]) -> None:
            kept.ended = self._clock()
            error = None if result.cancelled() else result.exception()
            if isinstance(error, BusyError):
                del self._kept[key]
            elif error is not None:
                _log.warning("analysis failed", extra={"run": key[0], "error": error})

        waiting.result.add_done_callback(end)
        self._waiting.append(waiting)
        self._added.set()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._in_turn())
        return kept

    def _hurry(self, kept: _Kept, asker: Asker, *, is_incident: bool) -> None:
        """Have an analysis that waits begin as soon as it would for another asker."""
        now = self._clock()
        for place, each in enumerate(self._waiting):
            if each.result is kept.result:
                other = replace(each, asker=asker, is_incident=is_incident)
                if (other.order, self._free_at(other, now)) < (each.order, self._free_at(each, now)):
                    self._waiting[place] = other
                    self._added.set()

    def _make_room(self, waiting: _Waiting) -> None:
        """Have one that waits give way if there are too many; raise BusyError where it is this one."""
        own = [each for each in self._waiting if each.asker == waiting.asker]
        crowd = own if len(own) >= MOST_OF_ASKER else self._waiting if len(self._waiting) >= MOST_WAITING else []
        if not crowd:
            return
        held = Counter(each.asker.share for each in (*self._waiting, waiting))
        last = max((*crowd, waiting), key=lambda each: (each.order, held[each.asker.share], each.number))
        error = BusyError("too many other analyses are waiting")
        if last is waiting:
            raise error
        self._waiting.remove(last)
        if not last.result.done():
            last.result.set_exception(error)

    async def _in_turn(self) -> None:
        while self._waiting:
            now = self._clock()
            free = [each for each in self._waiting if self._free_at(each, now) <= now]
            if not free:
                pause = min(self._free_at(each, now) for each in self._waiting) - now
                self._added.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._added.wait(), pause)
                continue
            first = min(free, key=lambda each: (each.order, self._last(each), each.number))
            self._waiting.remove(first)
            await self._one(first)

    def _free_at(self, waiting: _Waiting, now: float) -> float:
        rest = self._rests.get(waiting.asker)
        own = now if rest is None else rest.until
        return own if waiting.asker.is_site else max(own, self._spent.free_at(now))

    def _last(self, waiting: _Waiting) -> float:
        rest = self._rests.get(waiting.asker)
        return 0.0 if rest is None else rest.since

    async def _one(self, waiting: _Waiting) -> None:
        """Make an analysis; whatever becomes of it is its result."""
        start, result = self._clock(), waiting.result
        try:
            made = await self._analyze(*waiting.request())
        except AnalysisError as error:
            if not result.done():
                result.set_exception(error)
        except Exception as error:  # noqa: BLE001 - a bug of one analysis must not end those that wait
            if not result.done():
                result.set_exception(AnalysisError(f"it failed: {type(error).__name__}"))
        else:
            if not result.done():
                result.set_result(made)
        now = self._clock()
        self._rests = {asker: rest for asker, rest in self._rests.items() if rest.until > now}
        self._rests[waiting.asker] = _Rest(now, now + min(REST * (now - start), LONGEST_REST_SECONDS))
        if not waiting.asker.is_site:
            self._spent.add(now - start, now)

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
