"""One stream: tracebacks, attempts, long lines, and what is counted."""

from __future__ import annotations

import json
from cProfile import Profile
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tachograph.logs import kinds, scan, sightings, sources
from tachograph.logs import reading as reading_module
from tachograph.logs.line import LineShape, parse
from tachograph.logs.reading import Reading, read, read_stream
from tachograph.logs.record import LogRecord
from tachograph.logs.scan import LogScan
from tachograph.logs.sightings import Context
from tachograph.logs.sources import Unread, plan
from tachograph.logs.verdict import LogFinding, conclude
from tachograph.signatures.table import LONGEST
from tests.logs.composed import composed

NOW = 1796000000.0  # 30 November 2026


def findings(text: str | bytes) -> list[LogFinding]:
    reading = Reading()
    block = text if isinstance(text, bytes) else text.encode()
    read_stream("log", [block], Context(1, NOW), reading, lambda _: None)
    return conclude(reading).findings


def test_tracebacks_of_two_ranks_are_told_apart() -> None:
    """Their lines are mixed; each exception has the innermost call of its own program, not of a package."""
    found = findings(
        "[rank1]: Traceback (most recent call last):\n"
        "[rank2]: Traceback (most recent call last):\n"
        '[rank1]:   File "/home/u/train.py", line 8, in step\n'
        '[rank2]:   File "/home/u/data.py", line 9, in fetch\n'
        '[rank2]:     raise OSError("CUDA out of memory")\n'
        '[rank1]:     raise RuntimeError("No space left on device")\n'
        '[rank1]:   File "/venv/lib/python3.11/site-packages/torch/nn/module.py", line 1, in call\n'
        "[rank2]: OSError: [Errno 116] Stale file handle\n"
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    assert {(one.name, one.rank, one.frame, one.line_number) for one in found} == {
        ("stale_or_lost_mount", 2, "/home/u/data.py:9 in fetch", 8),
        ("cuda_out_of_memory", 1, "/home/u/train.py:8 in step", 9),
    }


def test_an_exception_that_no_row_knows() -> None:
    """It is known to be one by the traceback before it, whatever it is called."""
    (found,) = findings('Traceback (most recent call last):\n  File "a.py", line 1\nmine.Stop: at 5\n')
    assert (found.name, found.role, found.line, found.frame) == ("assertion", "root", "mine.Stop: at 5", "a.py:1")


def test_a_traceback_that_does_not_end() -> None:
    """It is given up, and what comes after is read as usual."""
    text = "Traceback (most recent call last):\n" + "  more\n" * 3000 + "RuntimeError: CUDA error: misaligned address\n"
    assert [one.name for one in findings(text)] == ["device_assert"]


def test_errors_that_no_row_knows_are_put_together() -> None:
    """By their wording: numbers and names in them do not count."""
    names = ("amber", "beryl", "coral", "opal", "pearl", "quartz", "ruby", "topaz", "zircon")
    found = findings(
        "".join(f"[rank{rank}]: ERROR widget {rank} of shelf {name} fell\n" for rank, name in enumerate(names))
    )
    assert [(one.category, one.role, one.count, one.ranks) for one in found] == [
        ("unknown", "unknown", 9, list(range(9)))
    ]


def test_attempts_by_what_torchrun_says() -> None:
    """Each has its own root; the first one is the verdict's."""
    found = findings(
        "[rank1]: RuntimeError: CUDA error: misaligned address\n"
        "I1126 03:12:33.0 1 torch/api.py:1] worker group FAILED. 2/3 attempts left; will restart worker group\n"
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory\n"
        "  restart_count=3\n"
        "[rank2]: OSError: [Errno 28] No space left on device\n"
    )
    roots = {one.attempt: (one.name, one.rank) for one in found if one.role == "root"}
    assert roots == {0: ("device_assert", 1), 2: ("cuda_out_of_memory", 0), 3: ("no_space", 2)}
    assert found[0].attempt == 0


def test_a_line_that_comes_in_each_attempt() -> None:
    """It is counted for each, though but for its time it is the same."""
    line = "[rank1]: 2026-11-26 03:00:0{} RuntimeError: CUDA error: misaligned address\n"
    found = findings(line.format(1) + line.format(2) + "restart_count=1\n" + line.format(3))
    assert {(one.attempt, one.count) for one in found} == {(0, 2), (1, 1)}


def test_the_summary_of_torchrun() -> None:
    """How a process ended is said of the rank that stands above it."""
    (found,) = findings(
        "[1]:\n  time      : 2026-11-27_09:46:52\n  host      : node07\n  rank      : 12 (local_rank: 4)\n"
        "  exitcode  : -9 (pid: 1019)\n  traceback : Signal 9 (SIGKILL) received by PID 1019\n"
    )
    assert (found.name, found.rank, found.count) == ("child_killed", 12, 2)


def test_a_progress_bar_and_what_it_hides() -> None:
    """A carriage return ends a line, too; lines are counted by line breaks."""
    (found,) = findings(b"one\n" + b"".join(b"%d%%|###|\r" % step for step in range(9999)) + b"Loss is nan, stopping\n")
    assert (found.line, found.line_number) == ("Loss is nan, stopping", 2)


def test_a_line_of_ten_megabytes() -> None:
    """What is known in it is found, with its beginning and what is around; such lines are counted."""
    reading = Reading()
    text = b"[rank7]: " + b"x" * 10_000_000 + b" CUDA error: misaligned address " + b"y" * 5_000_000
    blocks = [text[at : at + (4 << 20)] for at in range(0, len(text), 4 << 20)]
    read_stream("log", [b"first\n", *blocks, b"\nlast\n"], Context(1, NOW), reading, lambda _: None)
    (found,) = conclude(reading).findings
    assert found.name == "device_assert"
    assert "misaligned" in found.line
    assert len(found.line) < 3 * LONGEST
    assert (found.line_number, reading.lines, reading.long_lines) == (2, 3, 1)


def test_a_line_without_a_time_has_that_of_the_last_one_before_it() -> None:
    """As the exceptions of a rank have none of their own."""
    found = findings("2026-11-26 03:12:33 step 7\n[rank3]: torch.OutOfMemoryError: CUDA out of memory\n")
    assert found[0].time == pytest.approx(1795662753)


def test_lines_that_differ_in_their_time_alone_are_counted() -> None:
    """Each is counted for its rank."""
    lines = [f"[rank{n % 2}]: 2026-11-26 03:12:{n:02d},1 RuntimeError: Broken pipe\n" for n in range(60)]
    found = findings("".join(lines))
    assert [(one.count, one.ranks) for one in found] == [(60, [0, 1])]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More kinds or ranks than the limit are counted and not kept."""
    monkeypatch.setattr(sightings, "MOST_SIGHTINGS", 5)
    reading = Reading()
    text = "".join(f"[rank{rank}]: RuntimeError: Broken pipe\n" for rank in range(9))
    read_stream("log", [text.encode()], Context(1, NOW), reading, lambda _: None)
    assert (sum(one.count for one in reading.kinds.lines.values()), reading.lost) == (5, 4)


def test_ranks_and_cards_by_the_lines_of_nccl() -> None:
    """A process is the rank that its communicator says, and uses the cards that its channels name."""
    found = findings(
        "node02:77:78 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_4:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        "node02:77:78 [1] NCCL INFO ncclCommInitRank comm 0x6 rank 9 nranks 16 cudaDev 1 - Init COMPLETE\n"
        "node02:77:78 [1] NCCL INFO ncclCommInitRank comm 0x5 rank 1 nranks 2 cudaDev 1 - Init COMPLETE\n"
        "node02:77:79 [1] NCCL INFO Channel 00/0 : 9[1] -> 10[2] [send] via NET/IB/1/GDRDMA\n"
        "node02:77:80 [1] ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4> with status=12 opcode=0\n"
    )
    assert (found[0].rank, found[0].node, found[0].nic) == (9, "node02", "mlx5_4:1")


@pytest.mark.parametrize("part", [1000, 4096])
def test_parts_say_what_the_whole_says(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is read in parts, block by block, gives the same findings, lines and counts."""
    path = tmp_path / "run.log"
    path.write_text(composed(4)[0], encoding="utf-8")
    whole = read_file(path)
    monkeypatch.setattr(sources, "PART", part)
    monkeypatch.setattr(sources, "BLOCK", 700)
    apart = read_file(path)
    assert (apart.lines, apart.size, apart.names.known()) == (whole.lines, whole.size, whole.names.known())
    assert [(one.name, one.rank, one.line_number, one.count) for one in conclude(apart).findings] == [
        (one.name, one.rank, one.line_number, one.count) for one in conclude(whole).findings
    ]


def test_an_attempt_goes_on_in_the_next_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a line says otherwise."""
    path = tmp_path / "run.log"
    filler = "[rank0]: step 1 loss 2.3\n" * 100
    path.write_text(filler + "restart_count=2\n" + filler * 3 + "CUDA out of memory\n" + filler, encoding="utf-8")
    monkeypatch.setattr(sources, "PART", 3000)
    (found,) = conclude(read_file(path)).findings
    assert (found.attempt, found.line_number) == (2, 402)


@pytest.mark.parametrize("batch", [1, 300_000])
def test_processes_say_what_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """Parts that are read by several processes, each alone or two in one go, are joined in their order."""
    path = tmp_path / "run.log"
    path.write_text(composed(5)[0], encoding="utf-8")
    whole = read_file(path)
    monkeypatch.setattr(sources, "PART", 8000)
    monkeypatch.setattr(reading_module, "ALONE", 0)
    monkeypatch.setattr(reading_module, "BATCH", batch)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert conclude(read_file(path)).findings == conclude(whole).findings


def test_many_small_files_are_read_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file costs counts, not its few bytes; the findings are the same, in the same order."""
    for rank in range(300):
        (tmp_path / f"rank-{rank}.log").write_text(f"step 1\nRuntimeError: of rank {rank}\n", encoding="utf-8")
    parts = plan([str(tmp_path)], [])
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    read(parts, alone := Reading(), lambda _: None)
    assert [len(batch) for batch in reading_module.batches(parts)] == [64, 64, 64, 64, 44]
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    read(parts, shared := Reading(), lambda _: None)
    (here,), (there,) = alone.kinds.lines.values(), shared.kinds.lines.values()
    assert there.first == here.first
    assert there.ranks(shared.names) == here.ranks(alone.names) == set(range(300))


def test_the_lines_of_a_kind_share_one_record(tmp_path: Path) -> None:
    """However many files they are in, those that came first alone are kept; of whom the others are is known."""
    for rank in range(300):
        text = f"2026-11-26 03:{59 - rank // 60:02}:{59 - rank % 60:02} step 1\n{rank}: RuntimeError: Broken pipe\n"
        (tmp_path / f"rank-{rank}.log").write_text(text, encoding="utf-8")
    read(plan([str(tmp_path)], []), reading := Reading(), lambda _: None)
    (lines,) = reading.kinds.lines.values()
    assert [one.file for one in lines.first] == [str(tmp_path / f"rank-{rank}.log") for rank in range(299, 235, -1)]
    assert (lines.count, lines.ranks(reading.names)) == (300, set(range(300)))
    (finding,) = conclude(reading).findings
    assert (finding.rank, finding.count, finding.ranks) == (299, 300, list(range(300)))


def test_further_wordings_of_a_row_are_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a log whose every failure is worded differently is bounded, too; all are counted."""
    monkeypatch.setattr(kinds, "MOST_WORDINGS", 3)
    text = "".join(f"[rank{rank}]: ValueError: {'o' * rank}dd\n" for rank in range(9))
    read_stream("log", [text.encode()], Context(1, NOW), reading := Reading(), lambda _: None)
    assert [lines.count for lines in reading.kinds.lines.values()] == [1, 1, 1, 6]


def read_file(path: Path) -> Reading:
    reading, progressed = Reading(), []
    read(plan([str(path)], reading.problems), reading, progressed.append)
    assert sum(progressed) == path.stat().st_size
    return reading


@pytest.mark.parametrize(
    ("name", "rank", "node", "attempt"),
    [
        ("rank-12.log", 12, "", 0),
        ("run_rank3.out", 3, "", 0),
        ("none_abc/attempt_1/5/stderr.log", 5, "", 1),
        ("node07/stdout.log", None, "node07", 0),
        ("worker-3.log", None, "worker-3", 0),
        ("train.log", None, "", 0),
    ],
)
def test_rank_and_node_by_the_path(name: str, rank: int | None, node: str, attempt: int, tmp_path: Path) -> None:
    """Where the lines do not say it."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("torch.OutOfMemoryError: CUDA out of memory\n", encoding="utf-8")
    problems: list[Unread] = []
    reading = Reading()
    read(plan([str(tmp_path)], problems), reading, lambda _: None)
    (finding,) = conclude(reading).findings
    assert (finding.rank, finding.node, finding.attempt) == (rank, node, attempt)


def test_findings_are_json() -> None:
    """Whatever a line holds."""
    assert json.loads(json.dumps([one.line for one in findings(b"RuntimeError: \xff\x00\x1b[0m \xed\xa0\x80\n")]))


def test_the_year_of_a_time_without_one() -> None:
    """It is the last one in which the time is not after the log was written, whatever the clock of the node says."""
    january = datetime(2027, 1, 1, 0, 30, tzinfo=timezone.utc).timestamp()
    for line, at in (
        ("Dec 31 23:59:00 n1 kernel: x", "2026-12-31T23:59:00"),
        ("Jan  1 00:20:00 n1 kernel: x", "2027-01-01T00:20:00"),
        ("[E101 00:45:00.0 a.cpp:1] x", "2027-01-01T00:45:00"),
        ("[E1231 23:59:00.0 a.cpp:1] x", "2026-12-31T23:59:00"),
        ("W229 10:00:00.5 12 a.py:1] x", "2024-02-29T10:00:00.500000"),
        ("ERROR 12-31 23:59:00 [core.py:4] x", "2026-12-31T23:59:00"),
    ):
        assert parse(line, january).time == datetime.fromisoformat(at + "+00:00").timestamp()


@pytest.mark.parametrize("indent", [None, 1])
def test_a_record_of_a_document_has_its_own_line(indent: int | None, tmp_path: Path) -> None:
    """The one that it begins in; what only begins like a document is read line by line."""
    path = tmp_path / "x.json"

    def line_number(text: str) -> int:
        path.write_text(text, encoding="utf-8")
        reading = Reading()
        read(plan([str(path)], reading.problems), reading, lambda _: None)
        return conclude(reading).findings[0].line_number

    records = [{"message": "step 1"}, {"message": "KeyError: 'x'"}]
    assert line_number(json.dumps(records, indent=indent)) == (5 if indent else 2)
    assert line_number("[{'loss': 2.1}]\nKeyError: 'x'\n") == 2


def calls_for(ranks: int) -> int:
    """Return how many calls it takes to read and judge a log in which so many ranks fail at once, line by line."""
    lines = (
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 80, in step',
        "torch.distributed.DistNetworkError: Connection reset by peer",
    )
    reading = Reading()
    blocks = (
        "".join(f"[rank{rank}]: {line}\n" for rank in range(begin, begin + 1000)).encode()
        for line in lines
        for begin in range(0, ranks, 1000)
    )
    profile = Profile()
    with profile:
        read_stream("run.log", blocks, Context(1, 0.0), reading, lambda _: None)
        verdict = conclude(reading)
    assert verdict.findings[0].ranks == list(range(ranks))
    return sum(one.callcount for one in profile.getstats())


def test_20_000_failing_ranks_are_read_in_one_go() -> None:
    """Each of their lines costs as much as if few ranks failed, though all of their tracebacks are open at once."""
    assert calls_for(20_000) < 12 * calls_for(2_000)


def test_what_a_program_logs_as_unimportant_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log may be dense with known words: they cost no parsing unless a row, or an error, may come of the line."""
    parsed: list[str] = []
    read = scan.read

    def seen(raw: str, until: float, shape: LineShape) -> LogRecord:
        parsed.append(raw)
        return read(raw, until, shape)

    monkeypatch.setattr(scan, "read", seen)
    log = "".join(
        f"[INFO] step {n} loss 2.1, timed out after 30 s, skipping corrupt file 3\n"
        f"step {n} timeouts=0 preempted=0 corrupted: 0\n"
        for n in range(1000)
    )
    scanned = LogScan(Context(1, 0.0))
    scanned.feed(b"begin\n" * 1000)
    parsed.clear()
    scanned.feed(log.encode())
    assert (len(parsed), scanned.result().sightings) == (0, {})


@pytest.mark.parametrize("block", [b"\n", b"\n \n\t\n", b"\x1b[0m\n"])
def test_a_log_of_empty_lines(block: bytes) -> None:
    """Nothing can be learned from it."""
    scan_ = LogScan(Context(1, NOW))
    scan_.feed(block)
    assert (scan_.result().sightings, scan_.result().lines) == ({}, block.count(b"\n"))
