"""Which finding is the first cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.__main__ import main
from tachograph.logs.reading import Reading, read_stream
from tachograph.logs.sightings import Context
from tachograph.logs.verdict import LogVerdict, conclude
from tests.logs.composed import RANKS, composed
from tests.schemas import conforms

NOW = 1796000000.0  # 30 November 2026
CASCADE = "[rank{}]: 2026-11-26 {} Some NCCL operations have failed or timed out."
OOM = "[rank{}]: 2026-11-26 {} torch.OutOfMemoryError: CUDA out of memory."
DISK = "[rank{}]: 2026-11-26 {} OSError: [Errno 28] No space left on device"
ODD = "[rank{}]: 2026-11-26 {} ValueError: the plumbus is closed"


def verdict(*logs: str) -> LogVerdict:
    reading = Reading()
    for number, log in enumerate(logs):
        read_stream(f"log{number}", [log.encode()], Context(number, NOW), reading, lambda _: None)
    return conclude(reading)


def first(*lines: str) -> tuple[str, int | None]:
    found = verdict("\n".join(lines) + "\n").findings[0]
    return found.category, found.rank


@pytest.mark.parametrize("seed", range(60))
def test_the_root_wins_in_a_composed_log(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On one of 16 ranks, though the cascades of the others stand first; in one file, and in one for each rank."""
    log, root, culprit = composed(seed)
    if seed % 2:
        path = tmp_path / "run.log"
        path.write_text(log, encoding="utf-8")
    else:
        path = tmp_path
        for rank in range(RANKS):
            own = [line for line in log.splitlines() if f"[rank{rank}]:" in line or line.startswith(f"{rank:2}: ")]
            assert own
            (path / f"{rank}.log").write_text("\n".join(own), encoding="utf-8")
    assert main(["logs", "--json", str(path)]) == 0
    found = conforms("logs", capsys.readouterr().out)["findings"][0]
    assert (found["category"], found["role"], found["rank"]) == (root["category"], "root", culprit)
    assert root["text"].strip() in found["line"]


def test_a_role_counts_more_than_a_time() -> None:
    """A cascade is not the cause, however early."""
    assert first(CASCADE.format(0, "03:00:00"), OOM.format(1, "03:10:00")) == ("out_of_memory", 1)


def test_of_roots_the_earliest_is_the_cause() -> None:
    """By their times, not by their order in the file."""
    assert first(DISK.format(1, "03:00:05"), OOM.format(2, "03:00:01")) == ("out_of_memory", 2)


def test_a_known_root_is_preferred_to_an_unknown_exception() -> None:
    """Which is the cause where there is no other, though cascades are known."""
    assert first(ODD.format(1, "03:00:00"), OOM.format(2, "03:00:01")) == ("out_of_memory", 2)
    assert first(ODD.format(1, "03:00:05"), CASCADE.format(2, "03:00:01")) == ("software", 1)


def test_a_kill_seen_from_outside() -> None:
    """The kernel's word counts more than exceptions that no row knows; the launcher's summary does not."""
    killed = "2026-11-26T03:00:09Z node07 kernel: Memory cgroup out of memory: Killed process 7 (python)"
    summary = "2026-11-26T03:00:09Z Root Cause (first observed failure): [0]: rank : 5 (local_rank: 5) exitcode : 1"
    assert first(ODD.format(1, "03:00:00"), killed) == ("out_of_memory", None)
    assert first(ODD.format(1, "03:00:00"), summary) == ("software", 1)


def test_what_was_over_long_ago_is_not_the_cause() -> None:
    """Of episodes that are more than three quarters of an hour apart, the last that has a root counts."""
    assert first(DISK.format(1, "02:09:00"), OOM.format(2, "03:00:00"), CASCADE.format(3, "03:10:00")) == (
        "out_of_memory", 2
    )  # fmt: skip
    assert first(DISK.format(1, "01:00:00"), CASCADE.format(3, "03:10:00")) == ("storage", 1)


def test_what_went_on_for_hours_is_not_the_cause() -> None:
    """A root that has come again and again for hours is none; what is near the end counts."""
    retries = [DISK.format(1, f"0{hour}:{minute}0:00") for hour in range(3) for minute in range(6)]
    assert first(*retries, OOM.format(2, "03:00:00")) == ("out_of_memory", 2)
    others = (
        "Connection reset by peer",
        "remote process exited",
        "watchdog got stuck",
        "Gradient overflow. Skipping step",
    )
    between = [
        f"[rank9]: 2026-11-26 0{at // 60}:{at % 60:02}:00 {text}"
        for at, text in zip((40, 80, 120, 160), others, strict=True)
    ]
    assert first(DISK.format(1, "00:00:00"), *between, OOM.format(2, "03:00:00")) == ("out_of_memory", 2)


def test_a_warning_is_no_cause() -> None:
    """Whatever a line speaks of that its program calls a warning, others are preferred, those that suffer, too."""
    warning = "[rank0]: 2026-11-26 02:59:00 WARNING: /data/cache: No such file or directory, using the default"
    assert first(warning, OOM.format(1, "03:00:00")) == ("out_of_memory", 1)
    assert first(warning, ODD.format(1, "03:00:00")) == ("software", 1)
    assert verdict(warning, CASCADE.format(1, "03:00:00")).state == "no_cause"
    assert verdict(warning).state == "nothing_wrong"


def test_a_root_that_a_dead_peer_explains() -> None:
    """A broken path to a peer is the cause where nothing else is, and not where a peer is known to have died."""
    path = "[rank5]: 2026-11-26 03:00:00 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4> with status=12"
    killed = "2026-11-26T03:00:09Z node07 kernel: Memory cgroup out of memory: Killed process 7 (python)"
    assert first(path, CASCADE.format(1, "02:59:00"), ODD.format(2, "02:59:00")) == ("network", 5)
    assert first(path, OOM.format(1, "03:00:01")) == ("out_of_memory", 1)
    assert first(path, killed) == ("out_of_memory", None)


def test_a_kernel_without_a_clock() -> None:
    """A fault of hardware whose time nobody knows comes before the exceptions that it explains."""
    kernel = "[ 8123.456789] NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.\n"
    found = verdict(OOM.format(3, "03:00:00"), kernel)
    assert found.findings[0].category == "hardware"


def test_a_root_on_several_ranks_is_one_finding() -> None:
    """Of the first rank, with all that had it."""
    found = verdict("\n".join(OOM.format(rank, f"03:00:0{9 - rank}") for rank in (1, 2, 7)))
    assert [(one.rank, one.ranks, one.count) for one in found.findings] == [(7, [1, 2, 7], 3)]


def test_states() -> None:
    """Nothing read, nothing wrong, hints alone, failures without a cause, and a cause."""
    advice = "[rank0]: WARNING: destroy_process_group() was not called before program exit"
    assert conclude(Reading()).state == "unreadable"
    assert verdict("[rank0]: step 1 loss 2.3\n").state == "nothing_wrong"
    assert verdict(advice).state == "nothing_wrong"
    assert verdict(CASCADE.format(0, "03:00:00")).state == "no_cause"
    assert verdict(OOM.format(0, "03:00:00")).state == "cause"


def test_what_a_kernel_reports_before_long_hours_of_steps() -> None:
    """It is no cause where nothing failed, and one where the steps ended with it."""
    down = "[Thu Nov 26 03:00:00 2026] mlx5_core 0000:5e:00.0 ibs2: Link down\n"
    steps = [f"2026-11-26 03:{minute:02}:00 step {minute} loss 2.1\n" for minute in range(30)]
    assert verdict("".join(steps), down).state == "nothing_wrong"
    assert verdict("".join(steps[:5]), down).state == "cause"


def test_a_report_whose_words_say_something_is_preferred() -> None:
    """To one before it that no row knows."""
    odd = "[rank1]: 2026-11-26 03:00:00 ERROR TDRV:exec (FATAL-RT-UNDEFINED-STATE) no notification (end:0)"
    told = "[rank1]: 2026-11-26 03:00:01 ERROR NRT:nrt_infodump Failure: NRT_EXEC_HW_ERR_HBM_UE in nrt_execute()"
    assert first(odd, told) == ("hardware", 1)
