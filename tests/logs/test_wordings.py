"""Logs with very many lines that differ in numbers alone: all are counted, and what differs is found."""

from __future__ import annotations

from cProfile import Profile
from pathlib import Path

from tachograph.logs.findings import LogFinding
from tachograph.logs.wordings import EVERY, SETTLED
from tests.logs.layouts import judged

MANY = 10 * SETTLED


def line(rank: int, number: int) -> str:
    return f"[rank{rank}]: 2026-11-28 21:00:00,{number % 1000:03} OSError: [Errno 5] Input/output error: '/d/{number}.bin'\n"


def findings(text: str, tmp_path: Path) -> dict[str, LogFinding]:
    verdict = judged(tmp_path, {"run.log": text.encode()})
    return {one.name: one for one in verdict.findings}


def test_all_lines_of_a_wording_are_counted(tmp_path: Path) -> None:
    """With all of their ranks, though most are not read."""
    found = findings("".join(line(number % 8, number) for number in range(MANY)), tmp_path)
    (one,) = found.values()
    assert (one.count, one.ranks, one.line_number) == (MANY, [*range(8)], 1)


def test_most_lines_are_not_read(tmp_path: Path) -> None:
    """A further line costs less than half of the calls that one of the first costs."""

    def calls(lines: int) -> int:
        profile = Profile()
        with profile:
            findings("".join(line(0, number) for number in range(lines)), tmp_path / str(lines))
        return sum(one.callcount for one in profile.getstats())

    assert (calls(2 * MANY) - calls(MANY)) / MANY < calls(SETTLED) / SETTLED / 2


def test_a_rank_that_comes_late(tmp_path: Path) -> None:
    """It is found with one of its lines, of which it has many like the others."""
    text = "".join(line(0, number) for number in range(MANY)) + "".join(line(7, number) for number in range(2 * EVERY))
    (one,) = findings(text, tmp_path).values()
    assert (one.count, one.ranks) == (MANY + 2 * EVERY, [0, 7])


def test_another_wording_is_read(tmp_path: Path) -> None:
    """Wherever it stands."""
    other = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    text = "".join(line(0, number) for number in range(MANY))
    found = findings(text + other + text, tmp_path)
    assert found["cuda_out_of_memory"].ranks == [5]
    assert found["cuda_out_of_memory"].line_number == MANY + 1
    assert found["stale_or_lost_mount"].count == 2 * MANY


def test_a_rank_that_fails_again_and_again_and_goes_on(tmp_path: Path) -> None:
    """None of it is a cause while it makes steps; the last time is, if none follows."""
    often = "".join(line(0, number) + f"[rank0]: step {number} loss 2.1\n" for number in range(MANY))
    after = "".join(f"[rank0]: step {number} loss 2.1\n" for number in range(MANY, MANY + 20))
    went_on = judged(tmp_path / "on", {"run.log": (often + after).encode()})
    assert went_on.state == "nothing_wrong"
    stopped = judged(tmp_path / "stopped", {"run.log": (often + after + line(0, MANY + 20)).encode()})
    assert stopped.state == "cause"
