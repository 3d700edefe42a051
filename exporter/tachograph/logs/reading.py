"""Reads all streams, large ones on several cores, and joins what they said."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import NamedTuple

from tachograph.logs.clocks import StepClocks, StepLines, steps_in
from tachograph.logs.job_nodes import JobNodes
from tachograph.logs.kinds import Found, Kinds
from tachograph.logs.progress import ANYBODY
from tachograph.logs.ranks import RankNames
from tachograph.logs.scan import LogScan
from tachograph.logs.shape import SAMPLED
from tachograph.logs.sightings import Context, Scanned
from tachograph.logs.sources import BLOCK, UNREADABLE, FilePart, Unread, blocks
from tachograph.processes.die_with_parent import begin_worker
from tachograph.processes.own_process import own_workers

ALONE = 32 << 20
"""Bytes in all up to which other processes are not worth their start."""
_AHEAD = 4
"""Batches that are handed to each process in advance."""
BATCH = 8 << 20
"""Bytes of small files that are handed to a process in one go."""
_EACH = 128 << 10
"""Bytes that are read in the time that a file costs, however small: it is opened, and its shape is learned."""

Progress = Callable[[int], None]
"""Called with the bytes that have been read since the last call."""


@dataclass
class Reading:
    """Everything that was read: what was found, by kind, sizes, and what could not be read.

    `stepped`: the time up to which all files make steps, of those whose last lines have one; `finished`: whether all of
    these say that the training is over.
    """

    kinds: Kinds = field(default_factory=Kinds)
    names: RankNames = field(default_factory=RankNames)
    job: JobNodes = field(default_factory=JobNodes)
    clocks: StepClocks = field(default_factory=StepClocks)
    problems: list[Unread] = field(default_factory=list)
    files: int = 0
    size: int = 0
    lines: int = 0
    long_lines: int = 0
    lost: int = 0
    first: float | None = None
    last: float | None = None
    stepped: float | None = None
    finished: bool | None = None

    def add(
        self, name: str, scans: Sequence[Scanned], context: Context, steps: Sequence[Callable[[], StepLines]]
    ) -> None:
        """Add the parts of one file, in order, and how to get the lines of each that report steps."""
        lines, attempt = 0, context.attempt
        self.files += 1
        for number, scanned in enumerate(scans):
            went_on = number + 1 < len(scans) and len(scans[number + 1].steps) >= ANYBODY
            for key, sighting in scanned.sightings.items():
                known = key._replace(attempt=attempt) if key.attempt is None else key
                if went_on and key in scanned.unsettled:
                    sighting = sighting._replace(recovered=True)  # noqa: PLW2901
                at_end = number + 1 == len(scans) and sighting.line >= scanned.lines
                if at_end and sighting.frame and sighting.mood == "retry":
                    sighting = sighting._replace(mood="")  # noqa: PLW2901  an earlier failure was retried, not the last
                if sighting.time is None:  # before the first line that has one
                    sighting = sighting._replace(time=scanned.first)  # noqa: PLW2901
                self.kinds.add(Found(known, sighting, name, lines + sighting.line, context.file))
            attempt = attempt if scanned.attempt is None else scanned.attempt
            lines += scanned.lines
            self.clocks.add(context.file, steps[number])
            self.names.nccl.add(scanned.nccl)
            self.names.add(context, scanned.named)
            self.job.add(name, context, scanned.named)
            self.size += scanned.size
            self.long_lines += scanned.long_lines
            self.lost += scanned.lost
            seen = (sighting.time for sighting in scanned.sightings.values())
            ends = (self.first, self.last, scanned.first, scanned.last)
            times = [time for time in (*ends, *seen) if time is not None]
            self.first, self.last = min(times, default=None), max(times, default=None)
        if scans and (ended := scans[-1].last_step) is not None:
            self.finished = ended.finished and self.finished is not False
            if ended.time is not None:
                self.stepped = ended.time if self.stepped is None else min(self.stepped, ended.time)
        self.lines += lines


class _Outcome(NamedTuple):
    scanned: Scanned
    why: str


def read(parts: Sequence[FilePart], reading: Reading, progress: Progress) -> None:
    """Read parts of files into a reading; a file that fails midway is read as far as it goes, and is a problem."""
    read_: dict[int, _Outcome] = {}
    found = _outcomes(parts, progress)
    for _, of_file in groupby(range(len(parts)), lambda number: parts[number].context.file):
        numbers = list(of_file)
        while not all(number in read_ for number in numbers):
            number, outcome = next(found)
            read_[number] = outcome
        outcomes = [read_.pop(number) for number in numbers]
        first = parts[numbers[0]]
        for outcome in outcomes:
            if outcome.why:
                lines = outcome.scanned.lines
                reading.problems.append(Unread(first.path, f"{outcome.why}, after {lines} lines", skipped=not lines))
        if all(map(_is_nothing, outcomes)):
            continue
        steps = [partial(_steps_of, parts[number]) for number in numbers]
        reading.add(first.path, [outcome.scanned for outcome in outcomes], first.context, steps)


def read_stream(name: str, stream: Iterable[bytes], context: Context, reading: Reading, progress: Progress) -> None:
    """Read one stream of blocks into a reading."""
    first = b""

    def begin_kept() -> Iterator[bytes]:
        nonlocal first
        for block in stream:
            first = first or block[:SAMPLED]
            yield block

    outcome = _scan(begin_kept(), context, progress)
    if outcome.why:
        reading.problems.append(Unread(name, outcome.why, skipped=not outcome.scanned.lines))
    if not _is_nothing(outcome):
        reading.add(name, [outcome.scanned], context, [partial(steps_in, first, context)])


def _is_nothing(outcome: _Outcome) -> bool:
    return bool(outcome.why) and not outcome.scanned.lines


def _outcomes(parts: Sequence[FilePart], progress: Progress) -> Iterator[tuple[int, _Outcome]]:
    shares = list(batches(parts))
    processes = min(os.cpu_count() or 1, len(shares), 8)
    if processes < 2 or sum(map(_cost, parts)) < ALONE:
        for number, part in enumerate(parts):
            yield number, _scan(blocks(part), part.context, progress, follows=part.begin > 0)
        return
    with ProcessPoolExecutor(processes, own_workers(), begin_worker, (os.getpid(),)) as pool:
        waiting: dict[Future[list[_Outcome]], range] = {}
        left = iter(shares)
        while True:
            while len(waiting) < processes * _AHEAD and (batch := next(left, None)) is not None:
                waiting[pool.submit(_in_a_process, [parts[number] for number in batch])] = batch
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                for number, outcome in zip(waiting.pop(future), future.result(), strict=True):
                    progress(outcome.scanned.size)
                    yield number, outcome


def batches(parts: Sequence[FilePart]) -> Iterator[range]:
    """Yield the numbers of parts that are read in one go."""
    begin = cost = 0
    for number, part in enumerate(parts):
        if cost and cost + _cost(part) > BATCH:
            yield range(begin, number)
            begin, cost = number, 0
        cost += _cost(part)
    if cost:
        yield range(begin, len(parts))


def _in_a_process(parts: Sequence[FilePart]) -> list[_Outcome]:
    return [_scan(blocks(part), part.context, lambda _: None, follows=part.begin > 0) for part in parts]


def _scan(stream: Iterable[bytes], context: Context, progress: Progress, *, follows: bool = False) -> _Outcome:
    scan, why = LogScan(context, follows=follows), ""
    try:
        for block in stream:
            scan.feed(block)
            progress(len(block))
    except UNREADABLE as error:
        strerror = error.strerror if isinstance(error, OSError) else None
        why = strerror or str(error) or type(error).__name__
    return _Outcome(scan.result(), why)


def _steps_of(part: FilePart) -> StepLines:
    """Return the lines in the beginning of a part of a file that report steps."""
    head = part if part.end is None else part._replace(end=min(part.end, part.begin + SAMPLED))
    try:
        block = next(blocks(head), b"")
    except UNREADABLE:
        block = b""
    return steps_in(block, part.context)


def _cost(part: FilePart) -> int:
    return max(_EACH, BLOCK if part.end is None else part.end - part.begin)
