"""What is a cause and what is none: caught failures, warnings, cascades, silence, and what only confirms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tachograph.__main__ import main
from tachograph.logs.reading import Reading, read
from tachograph.logs.sources import plan
from tachograph.logs.verdict import conclude
from tests.logs.layouts import judged
from tests.schemas import conforms

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TIMEOUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE) ran for 600047 milliseconds"
)
UPLOAD = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/requests/models.py", line 1021, in raise_for_status
    raise HTTPError(http_error_msg, response=self)
requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://api.wandb.ai/graphql
"""


def steps(first: int, last: int, prefix: str = "") -> str:
    return "".join(f"{prefix}2026-11-20 10:{n // 60:02}:{n % 60:02} step {n} loss 2.1\n" for n in range(first, last))


HEALTHY = {
    "an overflow, skipped": "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 3\n"
    "2026-11-20 10:10:00 training finished\n",
    "overflows alone": "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 256.0\n" * 3,
    "an upload, caught and retried": steps(0, 9)
    + UPLOAD
    + "wandb: Network error (HTTPError), entering retry loop.\n"
    + steps(9, 99),
    "an exception among steps": steps(0, 9) + UPLOAD + steps(9, 99),
    "an exception of one rank, steps of another": steps(0, 9, "[rank0]: ")
    + "".join(f"[rank3]: {line}\n" for line in UPLOAD.splitlines())
    + steps(9, 99, "[rank0]: "),
    "an exception before a single late step": "2026-11-20 10:00:24 metrics\n"
    + UPLOAD
    + "2026-11-20 10:10:00 step 300 loss 2\n",
    "a sample that is skipped": "Traceback (most recent call last):\n"
    '  File "/w/data.py", line 9, in get\n'
    "PIL.UnidentifiedImageError: cannot identify image file 'a.jpg'\n"
    "skipping sample 4711\n" + steps(0, 3),
    "a batch that is skipped": "Loss is NaN at step 12, skipping the batch\n" + steps(13, 40),
    "a warning": "WARNING:root:/data/cache: No such file or directory, using the default\n" + steps(0, 3),
    "a warning of Python's": "/w/a.py:3: UserWarning: Permission denied for /root/.triton, falling back\n"
    + steps(0, 3),
    "possibilities": "If you see CUDA out of memory, lower the batch size\n"
    "A hang here may be caused by No space left on device, or a firewall\n" + steps(0, 3),
    "a retry": "OSError: [Errno 116] Stale file handle\nretrying in 5 s (attempt 1/5)\n" + steps(0, 20),
    "an allocation, retried": "CUDA out of memory with batch size 64, retrying with 32\n" + steps(0, 20),
    "a library's registration": "E0000 00:00:1763632800.1 1 dnn.cc:83] Unable to register the factory: error: twice\n"
    + steps(0, 20),
    "a peer that was reset": "[rank1]: RuntimeError: Broken pipe\n" + steps(0, 20, "[rank1]: "),
    "an exception at the end of the interpreter": steps(0, 9)
    + "Exception ignored in: <function A.__del__ at 0x7f>\nTraceback (most recent call last):\n"
    '  File "/w/a.py", line 3, in __del__\n'
    "AttributeError: 'NoneType' object has no attribute 'close'\n",
    "progress bars": "".join(f"\r 43%|####| {n}/250 [09:28<12:40, 20.2s/it]" for n in range(9))
    + "\nRuntimeError: CUDA error: misaligned address\n"
    + "".join(f"\r 43%|####| {n}/250 [09:28<12:40, 20.2s/it]" for n in range(9, 60))
    + "\n",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_has_no_cause(name: str, tmp_path: Path) -> None:
    """What was caught, retried, skipped or only warned of is none; what it was is kept as a finding."""
    verdict = judged(tmp_path, {"train.log": HEALTHY[name]})
    assert (verdict.state, verdict.roots) == ("nothing_wrong", [])


def test_what_was_caught_is_not_preferred_to_what_ended_the_run(tmp_path: Path) -> None:
    """However early and however well known it is."""
    caught = steps(0, 9) + UPLOAD + steps(9, 300)
    verdict = judged(tmp_path, {"r0.log": caught, "r1.log": caught, "r5.log": steps(0, 300) + f"[rank5]: {OOM}\n"})
    assert (verdict.findings[0].category, verdict.findings[0].rank) == ("out_of_memory", 5)
    passed = next(one for one in verdict.findings if "503 Server Error" in one.line)
    assert (passed.passed, passed.role) == ("went_on", "root")


def test_the_last_of_several_tries(tmp_path: Path) -> None:
    """What stands before it was said of the one before; nothing stands behind it."""
    log = steps(0, 9) + "WARNING upload failed, retrying (2/3)\n" + UPLOAD
    assert judged(tmp_path, {"train.log": log}).state == "cause"
    assert judged(tmp_path, {"train.log": log + "upload done\n"}).state == "nothing_wrong"


def test_a_failure_that_comes_back_and_stays(tmp_path: Path) -> None:
    """Once it was caught; the second time nobody makes a step after it."""
    verdict = judged(tmp_path, {"train.log": steps(0, 9) + UPLOAD + steps(9, 99) + UPLOAD})
    assert verdict.findings[0].line_number == 9 + 4 + 90 + 4


def test_steps_of_the_next_attempt_excuse_nothing(tmp_path: Path) -> None:
    """What ended the first one was its cause."""
    log = steps(0, 9) + f"[rank1]: {OOM}\n" + "I: worker group FAILED. 2/3 attempts left; will restart worker group\n"
    verdict = judged(tmp_path, {"train.log": log + steps(0, 99)})
    assert (verdict.state, verdict.findings[0].rank) == ("cause", 1)


def test_a_step_that_was_already_on_its_way_excuses_nothing(tmp_path: Path) -> None:
    """Another rank may be ahead by one."""
    log = steps(0, 9, "[rank0]: ") + f"[rank3]: {OOM}\n" + steps(9, 10, "[rank0]: ")
    assert judged(tmp_path, {"train.log": log}).findings[0].rank == 3


def test_watchdogs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no cause; who is silent where all others complain is named, and status is 3."""
    files: dict[str, str | bytes] = {
        f"rank_{rank}.log": steps(0, 30) + f"[rank{rank}]:[E1120 10:11:05.1 P.cpp:683] [Rank {rank}] {TIMEOUT}\n"
        f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] failure detected by watchdog at work sequence id: 12\n"
        for rank in range(16)
    }
    files["rank_13.log"] = steps(0, 30)
    verdict = judged(tmp_path, files)
    assert (verdict.state, verdict.roots, verdict.silent) == ("no_cause", [], [13])
    assert main(["logs", str(tmp_path / "run")]) == 3
    out = capsys.readouterr().out
    assert "CAUSE:" not in out
    assert "Of rank 13 there is no such line" in out


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "storage"),
        ("RuntimeError: DataLoader worker (pid 12345) is killed by signal: Killed.", "out_of_memory"),
        ("train.sh: line 3:  4711 Killed                  python train.py", "out_of_memory"),
        ("n1:1:2 [0] boot.cc:225 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16", "configuration"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_1_2'", "out_of_memory"),
    ],
)  # fmt: skip
def test_a_single_line_is_the_cause_as_far_as_the_log_goes(line: str, category: str, tmp_path: Path) -> None:
    """Though by its role it may only follow from something else."""
    verdict = judged(tmp_path, {"rank_1.log": line + "\n", "rank_0.log": f"[rank0]: {TIMEOUT}\n"})
    assert (verdict.state, verdict.findings[0].category) == ("cause", category)


SUBGROUP = "[PG ID 3 PG GUID 12(mesh_tp) Rank 1]"
"""Of a process group, in which its ranks have numbers of their own."""


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        (f"[rank13]:[E1120 10:11:05.1 ProcessGroupNCCL.cpp:683] {SUBGROUP} ", 13),
        ("[rank13]:[E1120 10:11:05.1 ProcessGroupNCCL.cpp:475] [Rank 1] ", 13),
        (f"13: {SUBGROUP} ", 13),
        (f"[E1120 10:11:05.1 ProcessGroupNCCL.cpp:683] {SUBGROUP} ", None),
        ("[E1120 10:11:05.1 ProcessGroupNCCL.cpp:683] [PG ID 0 PG GUID 0(default_pg) Rank 13] ", 13),
    ],
)
def test_a_rank_within_a_process_group_is_not_the_rank(prefix: str, rank: int | None, tmp_path: Path) -> None:
    """The number that torch puts first is the process's own."""
    ecc = "Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"
    verdict = judged(tmp_path, {"run.log": f"{prefix}{ecc}\n"})
    assert (verdict.findings[0].category, verdict.findings[0].rank) == ("hardware", rank)


def test_silence_where_groups_time_out(tmp_path: Path) -> None:
    """The rank that says nothing is found by the ranks of the processes, not by those within their groups."""
    lines = [f"[rank{rank}]: step {step} loss 2" for step in range(5) for rank in range(16)]
    lines += [
        f"[rank{rank}]:[E1120 10:11:05.1 P.cpp:683] [PG ID 3 PG GUID 12(mesh_tp) Rank {rank % 4}] {TIMEOUT}"
        for rank in range(16)
        if rank != 13
    ]
    verdict = judged(tmp_path, {"run.log": "\n".join(lines) + "\n"})
    assert (verdict.state, verdict.silent) == ("no_cause", [13])


def test_a_label_of_nodes_that_a_later_line_gives_away(tmp_path: Path) -> None:
    """`srun --label` numbers its tasks: where each is a node's launcher, a line without more names no rank."""
    lines = [f"{node}: step {step} loss 2" for step in range(300) for node in range(2)]
    lines += ["1: terminate called after throwing an instance of 'std::bad_alloc'"]
    lines += [f"{rank // 8}: [rank{rank}]: {TIMEOUT}" for rank in range(16) if rank != 11]
    verdict = judged(tmp_path, {"run.log": "\n".join(lines) + "\n"})
    assert (verdict.findings[0].category, verdict.findings[0].rank) == ("out_of_memory", None)


def test_a_rank_that_the_launcher_of_mpich_found_dead(tmp_path: Path) -> None:
    """Its banner names rank and node, and the line below says the signal."""
    banner = (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 11 PID 4711 RUNNING AT g002\n"
        "=   KILLED BY SIGNAL: 9 (Killed)\n"
    )
    first = judged(tmp_path, {"train.o4711": steps(0, 9, "[3] ") + banner}).findings[0]
    assert (first.category, first.rank, first.node) == ("out_of_memory", 11, "g002")


def test_a_node_that_other_files_are_named_by(tmp_path: Path) -> None:
    """It is looked for in the names of all."""
    xid = "[Fri Nov 20 10:00:07 2026] NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.\n"
    files: dict[str, str | bytes] = {f"g00{n}.out": f"[rank{n}]: {TIMEOUT}\n" for n in (1, 2)}
    first = judged(tmp_path, files | {"dmesg-g002.txt": xid}).findings[0]
    assert (first.category, first.node) == ("hardware", "g002")


def test_what_is_said_from_outside_names_the_rank_that_says_it_too(tmp_path: Path) -> None:
    """The scheduler's word has no rank; the one rank that lost a worker is the one."""
    files: dict[str, str | bytes] = {
        f"vit_4711_{rank}.err": steps(0, 30) + f"[rank{rank}]:[E1120 10:12:01.0 P.cpp:6] {TIMEOUT}\n"
        for rank in range(4)
    }
    files["vit_4711_2.err"] = steps(0, 30) + (
        'Traceback (most recent call last):\n  File "/proj/main.py", line 90, in train\n'
        "RuntimeError: DataLoader worker (pid(s) 41234, 41301) exited unexpectedly\n"
    )
    files["slurm-4711.out"] = (
        "slurmstepd: error: Detected 2 oom_kill events in StepId=4711.0. Some tasks were OOM Killed.\n"
    )
    verdict = judged(tmp_path, files)
    assert (verdict.findings[0].category, verdict.findings[0].rank, verdict.findings[0].by) == (
        "out_of_memory",
        2,
        "kernel",
    )


@pytest.mark.parametrize(
    ("files", "rank", "local"),
    [
        ({"node1.log": f"[default3]:{OOM}\n", "node2.log": f"[default3]:{TIMEOUT}\n"}, None, 3),
        ({"x.log": '{"node":"n1","message":"failed (exitcode: -9) local_rank: 2 (pid: 7712) of x"}\n'}, None, 2),
        ({"x.log": f"Saving the shard of (RANK 3) failed: {OOM}\n"}, None, None),
        ({"x.log": f"[rank0]: Saving the shard of (RANK 3) failed: {OOM}\n"}, 0, None),
        ({"x.log": f"task 2: {OOM}\n"}, None, None),
        ({"x.log": f"waiting on rank 7: {OOM}\n"}, None, None),
        ({"lora_rank_64.log": f"{OOM}\n"}, None, None),
        ({"run_rank64/a.log": f"{OOM}\n", "run_rank64/b.log": f"{TIMEOUT}\n"}, None, None),
        ({"train.31337.log": f"{OOM}\n", "train.31401.log": f"{TIMEOUT}\n"}, None, None),
        ({"slurm-4711_3.out": f"{OOM}\n", "slurm-4711_4.out": f"{TIMEOUT}\n"}, None, None),
        ({"j_0.log": f"[rank4]: {TIMEOUT}\n", "j_1.log": f"{OOM}\n", "j_2.log": f"[rank7]: {TIMEOUT}\n"}, None, None),
        ({"2026-11-20.log": f"{OOM}\n", "2026-11-21.log": f"{TIMEOUT}\n"}, None, None),
        ({"run.log.1": f"{OOM}\n", "run.log.2": f"{TIMEOUT}\n"}, None, None),
        ({"run_restart_0.log": f"{OOM}\n", "run_restart_1.log": f"{TIMEOUT}\n"}, None, None),
        ({"r0.log": f"{TIMEOUT}\n", "r1.log": f"{OOM}\n", "r2.log": f"[rank2]: {TIMEOUT}\n"}, 1, None),
        ({"4711-node07-3.err": f"{OOM}\n", "4711-node07-0.err": f"{TIMEOUT}\n"}, 3, None),
        ({"rank.3/stderr": f"{OOM}\n", "rank.0/stderr": f"{TIMEOUT}\n"}, 3, None),
        ({"n1_rank3.log": f"{OOM}\n", "n2_rank3.log": f"{TIMEOUT}\n"}, None, None),
        ({"a/attempt_0/3/stderr.log": f"{OOM}\n", "a/attempt_0/0/stderr.log": f"{TIMEOUT}\n"}, 3, None),
        ({"n1/attempt_0/3/stderr.log": f"{OOM}\n", "n2/attempt_0/3/stderr.log": f"[rank7]: {TIMEOUT}\n"}, None, None),
    ],
)  # fmt: skip
def test_the_rank_or_none(files: dict[str, str | bytes], rank: int | None, local: int | None, tmp_path: Path) -> None:
    """A rank within a node, a rank that a text speaks of, and a number that is none are never the rank that failed."""
    first = judged(tmp_path, files).findings[0]
    assert first.category == "out_of_memory"
    assert (first.rank, first.local_rank) == (rank, local)


FULL = "OSError: [Errno 28] No space left on device: '/ckpt/3'"


def test_clocks_of_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing compares the clocks of two nodes they do not tell who was first: the other is named, too."""
    verdict = judged(
        tmp_path,
        {
            "run.log": f"[node1] 2026-11-20 10:00:00 [rank1]: x\n2026-11-20T10:00:30Z n1 kernel: x\n"
            f"[pod/w-1/c] 2026-11-20T10:00:30Z [rank1]: {OOM}\n"
            f"[pod/w-2/c] 2026-11-20T10:01:50Z [rank9]: {FULL}\n"
            "[pod/w-3/c] 2026-11-20T10:19:50Z [rank17]: OSError: [Errno 116] Stale file handle\n",
        },
    )
    assert (verdict.findings[0].rank, [(one.rank, one.node) for one in verdict.rivals]) == (1, [(9, "w-2")])
    assert main(["logs", str(tmp_path / "run")]) == 0
    said = "Perhaps before it, since clocks of nodes differ: storage, rank 9 on w-2, 1 min 20 s later by its own clock"
    assert said in " ".join(capsys.readouterr().out.split())


def on_two_nodes(ahead: int, first: str, second: str) -> dict[str, str | bytes]:
    """Return logs of a rank on node1, which fails first, and of one on node2 20 s later, whose clock is `ahead`."""

    def lines(shift: int, at: int, text: str) -> str:
        def clock(seconds: int) -> str:
            return f"2026-11-20 10:{(seconds + shift + 600) // 60:02}:{(seconds + shift) % 60:02}"

        made = "".join(f"{clock(2 * n)} step {n} loss 2.1\n" for n in range(30))
        return made + f"{clock(at)} ERROR failed\n{text}\n"

    return {"node1/rank_0.log": lines(0, 62, first), "node2/rank_8.log": lines(ahead, 82, second)}


@pytest.mark.parametrize("ahead", [-300, -90, -30, 0, 30, 90, 300])
def test_steps_compare_the_clocks_of_nodes(ahead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both made the same steps at once: whose clock is ahead, and which of two failures came first."""
    verdict = judged(tmp_path, on_two_nodes(ahead, FULL, OOM))
    assert (verdict.findings[0].rank, verdict.rivals) == (0, [])
    assert main(["logs", str(tmp_path / "run")]) == 0
    said = {
        -90: "the clock of node2 is 1 min 30 s behind that of node1",
        30: "the clock of node2 is 30 s ahead of that",
    }
    assert said.get(ahead, "the clock of node2 is" if ahead else "") in " ".join(capsys.readouterr().out.split())


def test_a_kind_of_failure_on_two_nodes(tmp_path: Path) -> None:
    """The first of a kind is the first by compared clocks, too."""
    first = judged(tmp_path, on_two_nodes(-90, OOM, OOM)).findings[0]
    assert (first.rank, first.ranks) == (0, [0, 8])


def test_who_complained_of_a_peer_before_is_not_the_first(tmp_path: Path) -> None:
    """Whatever the clocks say: its peer had gone already."""
    gone = "NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.7<41233>\n"
    files: dict[str, str | bytes] = {
        "n1/rank_0.log": f"2026-11-20 10:00:00 x\n{gone}[rank0]: {FULL}\n",
        "n2/rank_8.log": f"2026-11-20 10:04:00 x\n[rank8]: {OOM}\n",
    }
    verdict = judged(tmp_path, files)
    assert (verdict.findings[0].rank, verdict.rivals) == (8, [])


def test_new_year(tmp_path: Path) -> None:
    """Lines of syslog have no year: those of December are of the year before the log was written."""
    import os

    path = tmp_path / "run" / "messages"
    path.parent.mkdir()
    path.write_text(
        "Dec 31 23:59:30 n1 kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.\n"
        f"Jan  1 00:10:00 n2 torchrun[7]: [rank9]: {OOM}\n",
        encoding="utf-8",
    )
    os.utime(path, (1798767000, 1798767000))  # 1 January 2027, 01:30
    reading = Reading()
    read(plan([str(path.parent)], reading.problems), reading, lambda _: None)
    assert conclude(reading).findings[0].category == "hardware"
    assert (reading.last or 0) - (reading.first or 0) == 630


def test_zeros_are_no_binary(tmp_path: Path) -> None:
    """A log that was cut while it was open for writing begins with them."""
    verdict = judged(tmp_path, {"rank_2.log": bytes(20_000) + f"2026-11-20 10:00:00 step 1\n[rank2]: {OOM}\n".encode()})
    assert (verdict.findings[0].rank, verdict.findings[0].time) == (2, 1795168800)


def test_a_link_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, and the rest is read."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "run.log").write_text(f"[rank2]: {OOM}\n", encoding="utf-8")
    assert main(["logs", "--json", str(tmp_path)]) == 0
    (problem,) = conforms("logs", capsys.readouterr().out)["problems"]
    assert "symbolic links" in problem["why"]


def test_the_files_of_glog_name_the_process_of_a_worker(tmp_path: Path) -> None:
    """One for each severity: their number is its rank, and no node, unless lines speak against it."""
    info = {f"worker_{rank}.INFO": f"I1127 10:00:00.1 {rank} t.cc:8] step 1\n".encode() for rank in range(4)}
    error = {f"worker_{rank}.ERROR": f"E1127 10:01:0{9 - rank}.1 {rank} t.cc:9] {OOM}\n".encode() for rank in (1, 3)}
    found = judged(tmp_path, {**info, **error}).findings[0]
    assert (found.rank, found.node) == (3, "")
    (tmp_path / "other").mkdir()
    of_others = {name: b"[rank8]: " + text for name, text in error.items()}
    assert judged(tmp_path / "other", {**info, **of_others}).findings[0].rank == 8


@pytest.mark.parametrize(
    ("frames", "category"),
    [
        ('  File "/w/train.py", line 3, in <module>\n  File "/w/shards/dataset.py", line 9, in __getitem__\n', "data"),
        ('  File "/w/train.py", line 3, in <module>\n  File "/w/ckpt/saver.py", line 9, in save_all\n', "storage"),
        (
            '  File "/w/train.py", line 3, in <module>\n'
            '  File "/v/lib/python3.11/site-packages/tokenizers/models.py", line 9, in f\n',
            "data",
        ),
        ('  File "/w/train.py", line 3, in <module>\n', "software"),
    ],
)
def test_where_an_exception_without_words_was_raised(frames: str, category: str, tmp_path: Path) -> None:
    """The module and the function of the innermost call say what it is about."""
    log = f"Traceback (most recent call last):\n{frames}    f()\nAssertionError\n"
    (found,) = judged(tmp_path, {"run.log": log.encode()}).findings
    assert (found.category, found.role) == (category, "root")


@pytest.mark.parametrize(
    "record",
    [
        {"m": "unhandled", "exception": [{"exc_type": "ValueError", "exc_value": "cannot reshape array of size 9"}]},
        {"msg": "failed", "exception.type": "ValueError", "exception.message": "cannot reshape array of size 9"},
        {"message": "failed", "error": {"type": "ValueError", "message": "cannot reshape array of size 9"}},
    ],
)
def test_an_exception_in_fields_of_its_own(record: dict[str, object], tmp_path: Path) -> None:
    """Its class and its message are put together."""
    (found,) = judged(tmp_path, {"run.json": json.dumps({"rank": 2, **record}).encode() + b"\n"}).findings
    assert (found.rank, found.role, found.line) == (2, "root", "ValueError: cannot reshape array of size 9")
