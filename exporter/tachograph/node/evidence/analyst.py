"""The analysis of a run's boxes, in a process of its own.

The exporter starts it when a person asks, and ends it in time. Anybody on the node can send a box, so what is made of
one may cost this process its limits of time and memory, and the exporter nothing.

It reads a Request as one line of JSON from standard input, then the boxes of this node one after the other, each of the
length that the request says; it writes a Report as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from tachograph.blackbox import folder
from tachograph.blackbox.served import ServedBox, ServedRun, known_ranks
from tachograph.blackbox.verdict import judge
from tachograph.node.evidence import peers as others
from tachograph.node.evidence.request import Request, read_request
from tachograph.node.web.private import public_box
from tachograph.processes.die_with_parent import die_with_parent

CPU_SECONDS = 30
MEMORY_BYTES = 1 << 30
LEAST_MEMORY_BYTES = 160 << 20
"""With less, Python itself would not start what it needs."""

SPARED_BYTES = 48 << 20
"""Of a container's memory: left to the exporter."""

STACK_BYTES = 512 << 10
"""Of a thread: they count as used memory, and 8 MiB is the usual size."""

NICENESS = 10
FETCH_SECONDS = 15.0
_CGROUP = Path("/sys/fs/cgroup")


def report(request: Request, own: Iterator[tuple[ServedBox, bytes]]) -> dict[str, Any]:
    """Return the verdict, where each rank stands, on which node each is, and what could not be had, for JSON."""
    deadline = time.monotonic() + FETCH_SECONDS
    run = request.own.run
    found = others.PeerAnswers()
    trouble = ""
    if request.peers:
        try:
            found = others.indexes(others.addresses(request.peers, run, deadline), run, deadline)
        except others.PeerError as error:
            trouble = str(error)
    wanted = others.of_interest(found.runs, request.own)
    failed: dict[int, str] = {}
    made: dict[int, ServedBox] = {}

    def contents() -> Iterator[tuple[str, bytes]]:
        theirs = others.boxes(wanted, run, deadline, failed)
        for source, is_private in ((own, request.is_private), (theirs, request.all_private)):
            for box, text in source:
                made[box.rank] = box
                yield f"{box.attempt}/rank-{box.rank}.json", text if is_private else public_box(text)

    size = max((one.world_size for one in (request.own, *found.runs.values())), default=0)
    dumps = folder.read_boxes(contents(), len(request.own.boxes) + len(wanted))
    runs = [*found.runs.values(), request.own]
    verdict = judge(dumps, "the boxes of its ranks", size or None, known_ranks(runs))
    return {
        "verdict": asdict(verdict),
        "where": {str(rank): dump.where for rank, dump in dumps.ranks.items() if dump.where},
        "boxes": {str(rank): asdict(box) for rank, box in made.items() if rank in dumps.ranks},
        "ranks": {str(rank.rank): {**asdict(rank), "node": one.node} for one in runs for rank in one.ranks},
        "exporters": len(found.runs) + len(found.silent),
        "silent": found.silent,
        "failed": {str(rank): why for rank, why in failed.items()},
        "trouble": trouble,
    }


def _own_boxes(run: ServedRun, stream: BinaryIO) -> Iterator[tuple[ServedBox, bytes]]:
    for box in run.boxes:
        yield box, stream.read(box.size)


def _limit() -> None:
    """Take as little of the machine as the work needs, and end with the exporter."""
    with contextlib.suppress(OSError):
        die_with_parent()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    threading.stack_size(STACK_BYTES)
    for kind, most in ((resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_DATA, _memory())):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def _memory() -> int:
    """Return how much memory may be used: MEMORY_BYTES, and less in a container that has less left."""
    try:
        left = int((_CGROUP / "memory.max").read_text()) - int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no limit, or another kind of machine
        return MEMORY_BYTES
    return min(MEMORY_BYTES, max(LEAST_MEMORY_BYTES, left - SPARED_BYTES))


def main() -> None:
    """Read a request, write its report, and end without waiting for what no longer matters."""
    _limit()
    request = read_request(sys.stdin.buffer.readline())
    said = report(request, _own_boxes(request.own, sys.stdin.buffer))
    sys.stdout.buffer.write(json.dumps(said).encode())
    sys.stdout.buffer.flush()
    os._exit(0)  # a thread may still be waiting for a name server
