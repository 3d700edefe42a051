"""Shared by the fuzzers: an exporter to send to, and how long they take.

A few seconds, always the same, or `TACHOGRAPH_FUZZ_SECONDS`, each time anew (`make fuzz`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tachograph.node.app import Exporter
from tachograph.node.clock import Clock
from tachograph.node.config import read_config
from tachograph.node.exposition import OPENMETRICS, TEXT, render
from tachograph.node.ranks.frames import Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.process_end import ProcessEnds
from tachograph.node.ranks.rank_connection import RankConnection
from tachograph.wire import MAX_FRAME_BYTES

SECONDS = float(os.environ.get("TACHOGRAPH_FUZZ_SECONDS", "0"))
ROUND = 1000
"""Examples of a round of the long run: hypothesis begins each with what is simple."""


MAX_LABEL_BYTES = 256
"""The label_value_length_limit of the Prometheus that is shipped."""

MAX_SAMPLES = 10_000
"""Its sample_limit."""


class Pipe:
    """The transport's side of a connection: keeps what is written."""

    def __init__(self) -> None:
        self.written, self.closing, self.reading = bytearray(), False, True

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Node(asyncio.SelectorEventLoop):
    """An exporter whose clock is turned by hand, and the loop that it runs on: by the same clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__()
        clock = Clock(monotonic=self.time, wall=lambda: 1_763_690_000.0 + self.now)
        config = read_config(["--no-gpu", "--run.owner=never", "--socket=/nowhere/rank.sock"], {})
        self.retention = config.limits.retention
        self.exporter = Exporter(config, None, clock)

    def time(self) -> float:
        return self.now

    async def wait(self, seconds: float) -> None:
        """Turn the clock on, and let what is due by then be done."""
        self.now += seconds
        self.exporter.table.tick()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def speaker(self, uid: int, pid: int) -> Speaker:
        """Return one user's end of a connection that is not open yet."""
        return Speaker(self, uid, pid)

    def page(self) -> set[tuple[str, ...]]:
        """Return name, labels and value of every sample, once the page proves to be one that Prometheus takes."""
        samples = list(self.exporter.samples())
        parsed = [*parse_text(render(samples, TEXT).decode())]
        parsed = [*parse_openmetrics(render(samples, OPENMETRICS).decode())]
        lines = [sample for family in parsed for sample in family.samples]
        assert len(lines) <= MAX_SAMPLES
        for line in lines:
            for value in line.labels.values():
                assert len(value.encode()) <= MAX_LABEL_BYTES, line
        assert self.exporter._status_page()
        assert json.loads(self.exporter._answer(lambda _: True).as_json())["version"] == 1
        return {(line.name, *line.labels.values(), f"{line.value:g}") for line in lines}


class Speaker:
    """One user's end of a connection, which connects again where it was closed."""

    def __init__(self, node: Node, uid: int, pid: int) -> None:
        self._node, self._peer = node, Peer(uid, pid)
        self._connection: RankConnection | None = None

    async def say(self, data: bytes) -> list[dict[str, Any]]:
        """Send bytes and return the answers; each must be one object that says yes or no."""
        if self._connection is None or self._pipe.closing:
            self.close()
            self._pipe = Pipe()
            self._connection = RankConnection(
                self._node.exporter.table, self._node.time, self._peer, lambda _: None, ProcessEnds(Limits())
            )  # fmt: skip
            self._connection.connection_made(self._pipe)  # type: ignore[arg-type]
        for start in range(0, len(data), MAX_FRAME_BYTES):
            await self._until_read()
            if self._pipe.closing:
                break
            part = data[start : start + MAX_FRAME_BYTES]
            self._connection.get_buffer(-1)[: len(part)] = part
            self._connection.buffer_updated(len(part))
        await self._until_read()
        answers = [json.loads(line) for line in self._pipe.written.splitlines()]
        self._pipe.written.clear()
        assert all(isinstance(answer["ok"], bool) for answer in answers)
        return answers

    async def _until_read(self) -> None:
        """Let time pass until the exporter reads on; it never takes ten minutes for that."""
        for _ in range(2400):
            if self._pipe.reading or self._pipe.closing:
                return
            await self._node.wait(0.25)
        raise AssertionError("a connection is not read any more")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.connection_lost(None)
            self._connection = None


class Unheard(logging.Handler):
    """Keeps what was logged with a traceback: a contained exception is a fault, too."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.found.append(record.getMessage())


@pytest.fixture(scope="module")
def unheard() -> Iterator[Unheard]:
    """Keep what is logged of exceptions."""
    handler = Unheard()
    log = logging.getLogger("tachograph")
    log.addHandler(handler)
    log.propagate = False  # a line for each rank that died would drown what matters
    yield handler
    log.propagate = True
    log.removeHandler(handler)


@pytest.fixture
def new_node() -> type[Node]:
    """Make an exporter to speak to."""
    return Node


@pytest.fixture
def fuzz() -> Callable[..., None]:
    """Check what a strategy makes: `examples` of it, or `share` of the time given."""

    def run(check: Callable[[Any], None], made: SearchStrategy[Any], *, examples: int, share: float) -> None:
        chosen = settings(
            max_examples=ROUND if SECONDS else examples,
            derandomize=not SECONDS,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        end = time.monotonic() + SECONDS * share

        # Once over, the rest of a round passes without being looked at.
        def each(one: Any) -> None:
            if not SECONDS or time.monotonic() < end:
                check(one)

        while True:
            chosen(given(made)(each))()
            if time.monotonic() >= end:
                return

    return run
