"""Logs: whatever is in them, in whatever pieces they are read, a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable

from hypothesis import strategies as st

from tachograph.logs import text
from tachograph.logs.command import as_object
from tachograph.logs.reading import Reading, read_stream
from tachograph.logs.sightings import Context
from tachograph.logs.verdict import conclude

NOW = 1796000000.0

_PREFIXES = (
    b"", b"[rank3]: ", b"3: ", b"[1,3]<stderr>:", b"g002: ", b"(w1, rank=1, pid=7) ", b"trainer-3  | ", b"  | ",
    b"2026-11-20T10:00:00.5Z stderr P ", b"2026-11-20 10:00:00,1 ", b"[E1120 10:00:00.1 a.cpp:1] ", b"\x1b[31m", b"\0",
)  # fmt: skip
_TEXTS = (
    b"Traceback (most recent call last):", b'  File "a.py", line 8, in f', b"    f(x)", b"KeyError: 'x'",
    b"+ Exception Group Traceback (most recent call last):", b"| ValueError: x", b"step 12 loss 2",
    b"torch.OutOfMemoryError: CUDA out of memory", b"Watchdog caught collective operation timeout", b"retrying",
    b"restart_count=1", b"skipping", b"rank : 3 (local_rank: 1)", b'{"log": "KeyErr", "stream": "stderr"}',
    b'{"message": "Traceback (most recent call last):\\n  File \\"a\\", line 1\\nKeyError: 3", "rank": 3}',
    b'{"a": ' * 30, b"training finished", b"12/100 [00:01", b"CUDA error: x",
)  # fmt: skip
lines = st.builds(
    lambda parts, end: b"".join(parts) + end,
    st.lists(st.sampled_from(_PREFIXES) | st.sampled_from(_TEXTS) | st.binary(max_size=12), max_size=4),
    st.sampled_from([b"\n", b"\n", b"\r", b"\r\n", b""]),
)
logs = st.tuples(st.lists(lines, max_size=40).map(b"".join), st.integers(min_value=1, max_value=200))


def check(given: tuple[bytes, int]) -> None:
    """Read whole and in blocks, it can be told and written as JSON, and no root is one that only suffers."""
    log, size = given
    whole, apart = Reading(), Reading()
    read_stream("log", [log], Context(1, NOW), whole, lambda _: None)
    pieces = log.splitlines(keepends=True)
    blocks = [b"".join(pieces[at : at + size]) for at in range(0, len(pieces), size)]
    read_stream(
        "log", [block for block in blocks if block.endswith(b"\n")] or [log], Context(1, NOW), apart, lambda _: None
    )
    for reading in (whole, apart):
        verdict = conclude(reading)
        assert all(line == line.rstrip("\n") for line in text.lines(verdict, 80))
        assert json.loads(json.dumps(as_object(verdict), allow_nan=False))["state"] == verdict.state
        assert all(one.weight < one.weight.CASCADE for one in verdict.roots)


def test_no_log_raises(fuzz: Callable[..., None]) -> None:
    """Whatever ranks, launchers and collectors write."""
    fuzz(check, logs, examples=75, share=0.1)
