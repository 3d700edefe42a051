"""Logs with very many lines that differ in numbers alone: all are counted, and what differs is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from cProfile import Profile

import pytest

from tachograph.logs.candidates import PIECE, pieces
from tachograph.logs.findings import LogFinding
from tachograph.logs.reading import Reading, read_stream
from tachograph.logs.sightings import Context
from tachograph.logs.verdict import LogVerdict, conclude
from tachograph.logs.wordings import EVERY, SETTLED

MANY = 10 * SETTLED
BLOCK = 500
"""Lines that are read at once; of most logs these are some ten thousand."""


def line(rank: int, number: int) -> str:
    clock = f"2026-11-28 21:00:00,{number % 1000:03}"
    return f"[rank{rank}]: {clock} OSError: [Errno 5] Input/output error: '/d/{number}.bin'\n"


def traceback(rank: int, number: int) -> str:
    """Return the six lines of one."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 88, in train',
        "    loss = model(batch)",
        '  File "/w/model.py", line 120, in forward',
        "    x = self.layers(x)",
        f"OSError: [Errno 5] Input/output error: '/d/{number}.bin'",
    )
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


def read(text: str, block: int = BLOCK) -> LogVerdict:
    """Return the verdict on a log that is read in blocks of so many lines."""
    lines, reading = text.encode().splitlines(keepends=True), Reading()
    blocks = [b"".join(lines[begin : begin + block]) for begin in range(0, len(lines), block)]
    read_stream("run.log", blocks, Context(1, 1796000000.0), reading, lambda _: None)
    return conclude(reading)


def findings(text: str) -> dict[str, LogFinding]:
    return {one.name: one for one in read(text).findings}


def test_all_lines_of_a_wording_are_counted() -> None:
    """With all of their ranks, though most are not read."""
    found = findings("".join(line(number % 8, number) for number in range(MANY)))
    (one,) = found.values()
    assert (one.count, one.ranks, one.line_number) == (MANY, [*range(8)], 1)


def calls(printed: Callable[[int, int], str], many: int, block: int = BLOCK) -> int:
    """Return how many calls of functions it takes to read so many lines or tracebacks."""
    text, profile = "".join(printed(0, number) for number in range(many)), Profile()
    with profile:
        read(text, block)
    return sum(one.callcount for one in profile.getstats())


@pytest.mark.parametrize("printed", [line, traceback])
def test_most_are_not_read(printed: Callable[[int, int], str]) -> None:
    """A further line or traceback costs less than a tenth of the calls that one of the first costs."""
    assert (calls(printed, 2 * MANY) - calls(printed, MANY)) / MANY < calls(printed, SETTLED) / SETTLED / 10


def test_a_large_block_is_read_in_pieces() -> None:
    """What its first lines teach spares the others of the same block."""
    many = 10 * PIECE // len(traceback(0, 0))
    assert calls(traceback, many, block=10 * many) < many * calls(traceback, SETTLED) / SETTLED / 2


def test_a_rank_that_comes_late() -> None:
    """It is found with one of its lines, of which it has many like the others."""
    text = "".join(line(0, number) for number in range(MANY)) + "".join(line(7, number) for number in range(2 * EVERY))
    (one,) = findings(text).values()
    assert (one.count, one.ranks) == (MANY + 2 * EVERY, [0, 7])


def test_another_wording_is_read() -> None:
    """Wherever it stands."""
    other = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    text = "".join(line(0, number) for number in range(MANY))
    found = findings(text + other + text)
    assert found["cuda_out_of_memory"].ranks == [5]
    assert found["cuda_out_of_memory"].line_number == MANY + 1
    assert found["stale_or_lost_mount"].count == 2 * MANY


@pytest.mark.parametrize(("went_on", "failed"), [(range(8), [2, 5]), ([5], [*range(8)])])
def test_ranks_that_fail_again_after_steps(went_on: Sequence[int], failed: list[int]) -> None:
    """Each of them, though what they print has been seen of all of them very often."""
    often = "".join(line(number % 8, number) for number in range(MANY))
    steps = "".join(f"[rank{rank}]: step {step} loss 2.1\n" for step in range(3) for rank in went_on)
    verdict = read(often + steps + line(2, 1) + line(5, 2))
    assert (verdict.state, verdict.findings[0].ranks) == ("cause", failed)


def test_a_rank_that_fails_again_and_again_and_goes_on() -> None:
    """None of it is a cause while it makes steps; the last time is, if none follows."""
    often = "".join(line(0, number) + f"[rank0]: step {number} loss 2.1\n" for number in range(MANY))
    after = "".join(f"[rank0]: step {number} loss 2.1\n" for number in range(MANY, MANY + 20))
    went_on = read(often + after)
    assert went_on.state == "nothing_wrong"
    stopped = read(often + after + line(0, MANY + 20))
    assert stopped.state == "cause"


def test_all_tracebacks_are_counted() -> None:
    """With all of their ranks."""
    (one,) = findings("".join(traceback(number % 8, number) for number in range(4 * MANY))).values()
    assert (one.count, one.ranks, one.line_number, one.frame) == (
        4 * MANY,
        [*range(8)],
        6,
        "/w/model.py:120 in forward",
    )


def test_what_stands_between_tracebacks_is_read() -> None:
    """Another failure, and what says of one of them that it was caught."""
    many = "".join(traceback(0, number) for number in range(4 * MANY))
    other = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    caught = traceback(3, 1) + "[rank3]: skipping this batch\n"
    found = findings(many + other + many + caught + many)
    assert found["cuda_out_of_memory"].line_number == 6 * 4 * MANY + 1
    assert found["stale_or_lost_mount"].ranks == [0]


def test_what_stands_beside_a_traceback_is_seen_across_pieces() -> None:
    """It was caught, as the first line of the next piece says."""
    caught, other = traceback(0, 1), "[rank0]: loading\n"
    text = other * ((PIECE - len(caught)) // len(other) + 1) + caught + "[rank0]: skipping this batch\n"
    assert next(pieces(text.encode())).endswith(caught.encode())
    assert read(text, block=PIECE).state == "nothing_wrong"
