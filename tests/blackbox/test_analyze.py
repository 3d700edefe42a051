"""Who is named: jobs with one fault each, two real sets of dumps, and what happens to files on their way."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tachograph.blackbox import folder
from tachograph.blackbox.findings import Verdict
from tachograph.blackbox.verdict import analyze
from tests.blackbox.made_job import MILLISECOND, START, Call, Job, Stuck, as_json

REAL = Path(__file__).parent / "flight_recorder"
CULPRITS = {"gpu_error_1st": {12: "gpu_stuck", 14: "gpu_stuck"}, "lock_gil_1st": {9: "host_stuck", 14: "host_stuck"}}

WORLD = {"0": range(4)}
STEPS = [Call("0", line=20), Call("0", "broadcast", line=22)] * 5
GRID = {
    "0": range(8), "1": [0, 1], "2": [2, 3], "3": [4, 5], "4": [6, 7], "5": [0, 2, 4, 6], "6": [1, 3, 5, 7]
}  # fmt: skip
"""Eight ranks: pairs (tensor parallel), two groups across the pairs (data parallel), and all."""

Program = Sequence[Call | Stuck]


def kinds(verdict: Verdict) -> dict[int, str]:
    return {one.rank: one.kind for one in verdict.culprits}


def lines(verdict: Verdict) -> set[str | None]:
    return {one.line and one.line.rpartition("/")[2] for one in verdict.culprits}


def world(odd: int, its: Program, others: Program, before: Program = STEPS) -> dict[int, Program]:
    return {rank: [*before, *(its if rank == odd else others)] for rank in range(4)}


def grid_step(rank: int, blocks: bool = True) -> list[Call]:
    return [
        Call(str(1 + rank // 2), line=30, blocks=blocks),
        Call(str(5 + rank % 2), line=40, blocks=blocks),
        Call("0", line=50, blocks=blocks),
    ]


def grid(odd: int, its: Program) -> dict[int, Program]:
    return {
        rank: [*grid_step(rank) * 3, *(its if rank == odd else ()), *grid_step(rank, blocks=rank != odd) * 2]
        for rank in range(8)
    }


REDUCE, CAST = Call("0", line=20), Call("0", "broadcast", line=22)
LATER = [Call("0", line=20, blocks=False), Call("0", "broadcast", line=22)]


@pytest.mark.parametrize("backend", ["nccl", "nccl2", "gloo"])
@pytest.mark.parametrize(
    ("programs", "kind", "line"),
    [
        (world(2, [CAST], [REDUCE, CAST]), "skipped_collective", "train.py:20 step"),
        (world(2, [Call("0", "broadcast", line=22, blocks=False), REDUCE], LATER), "wrong_order", "train.py:22 step"),
        (world(2, [Call("0", size=8, line=25)], [REDUCE]), "size_mismatch", "train.py:25 step"),
        (world(2, [Call("0", dtype="Half", line=25)], [REDUCE]), "dtype_mismatch", "train.py:25 step"),
        (world(2, [Call("0", "all_gather", line=25)], [REDUCE]), "type_mismatch", "train.py:25 step"),
        (world(2, [Stuck()], STEPS), "host_stuck", "train.py:22 step"),
        (world(2, [REDUCE], []), "extra_collective", "train.py:20 step"),
    ],
)
def test_one_rank_of_four(backend: str, programs: dict[int, Program], kind: str, line: str, tmp_path: Path) -> None:
    """The rank that does otherwise is named, with what it did and the line; nobody else is."""
    verdict = analyze(Job(WORLD, programs, backend).play().write(tmp_path))
    assert kinds(verdict) == {2: kind}
    assert lines(verdict) == {line}
    assert verdict.state == "stuck"
    assert verdict.undecided == []


def test_a_call_skipped_between_calls_that_all_look_alike(tmp_path: Path) -> None:
    """Lines of code tell that one of many equal calls was skipped, where no size or name does."""
    calls = [Call("0", line=line, blocks=False) for line in (10, 20, 30, 40)]
    its = [*calls * 3, calls[0], calls[2], calls[3]]
    others = [*calls * 3, *calls, Call("0", line=50)]
    verdict = analyze(Job(WORLD, world(1, its, others, ())).play().write(tmp_path))
    assert kinds(verdict) == {1: "skipped_collective"}
    assert lines(verdict) == {"train.py:20 step"}


def test_a_call_from_a_line_that_never_made_it_before(tmp_path: Path) -> None:
    """It is the call that is wrong, and its line the one to show; what else was called from where it is, is not."""
    programs = world(2, [Call("0", "broadcast", line=77)], [REDUCE, CAST])
    verdict = analyze(Job(WORLD, programs).play().write(tmp_path))
    assert (kinds(verdict), lines(verdict)) == ({2: "wrong_order"}, {"train.py:77 step"})
    assert "never before from there" in verdict.culprits[0].reason


def test_lines_that_differ_by_rank_are_no_skipped_call(tmp_path: Path) -> None:
    """A rank may call the same operation from a line of its own, each time."""
    its = [Call("0", "broadcast", line=11), Call("0", line=20)] * 6
    others = [Call("0", "broadcast", line=13), Call("0", line=20)] * 6
    verdict = analyze(Job(WORLD, world(0, its, others, ())).play().write(tmp_path))
    assert (verdict.state, verdict.culprits, verdict.notes) == ("moving", [], [])


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_no_dump_is_evidence(backend: str, tmp_path: Path) -> None:
    """The rank that died, or raised and hangs on its way out, leaves no dump and is named by what waits for it."""
    job = Job(WORLD, world(1, [Stuck()], STEPS), backend).play()
    verdict = analyze(job.write(tmp_path, but=[1]))
    assert kinds(verdict) == {1: "no_dump"}
    assert verdict.absent == (1,)


def test_no_dump_of_a_rank_that_nothing_depends_on(tmp_path: Path) -> None:
    """A dump that is missing beside a culprit is reported, and not held against its rank."""
    job = Job(GRID, grid(5, [Stuck()])).play()
    verdict = analyze(job.write(tmp_path, but=[0]))
    assert kinds(verdict) == {5: "host_stuck"}
    assert [one.ranks for one in verdict.undecided] == [(0,)]


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("only_active", [False, True])
def test_the_group_that_blocked_first(backend: str, only_active: bool, tmp_path: Path) -> None:
    """A rank stuck on the host stops its pair; what waits for the pair is the cascade, and named as that."""
    job = Job(GRID, grid(5, [Stuck()]), backend).play()
    verdict = analyze(job.write(tmp_path, only_active=only_active and backend == "nccl"))
    assert kinds(verdict) == {5: "host_stuck"}
    assert verdict.blocked_first is not None
    assert (verdict.blocked_first.waiting, verdict.blocked_first.missing) == ((4,), (5,))
    assert {one.group.rpartition("(")[2] for one in verdict.cascade} == {"5)", "6)"}


def test_a_gpu_that_finishes_nothing(tmp_path: Path) -> None:
    """A rank that has called what the others' GPUs have finished is stuck on the GPU."""
    programs = {rank: [*grid_step(rank) * 3, *grid_step(rank, blocks=False) * 6] for rank in range(8)}
    programs[5] = [*grid_step(5) * 3, Stuck(gpu=True), *grid_step(5, blocks=False) * 6]
    verdict = analyze(Job(GRID, programs).play().write(tmp_path))
    assert kinds(verdict) == {5: "gpu_stuck"}


def test_a_kernel_that_has_not_started(tmp_path: Path) -> None:
    """Where the recorder has start events, the rank whose GPU has not begun what others' have is stuck on the GPU."""
    job = Job(WORLD, dict.fromkeys(range(4), STEPS), broken=frozenset("0")).play()
    for rank in range(4):
        made = job.dump(rank)
        if rank != 3:
            made["entries"][-1]["state"] = "started"
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    assert kinds(analyze(tmp_path)) == {3: "gpu_stuck"}


def test_nobody_where_all_are_equal(tmp_path: Path) -> None:
    """All have called it and it ends nowhere: the network, or something that dumps do not tell apart."""
    verdict = analyze(Job(GRID, grid(0, ()), broken=frozenset("3")).play().write(tmp_path))
    assert verdict.culprits == []
    assert verdict.state == "stuck"
    assert verdict.blocked_first is not None
    assert verdict.blocked_first.waiting == (4, 5)
    assert [one.ranks for one in verdict.undecided] == [(4, 5)]


def test_nobody_where_one_stands_against_one(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of two that disagree neither is named, unless groups of the same kind say which is right."""
    job = Job({"0": range(2)}, {0: [Call("0")], 1: [Call("0", size=8)]}).play()
    verdict = analyze(job.write(tmp_path_factory.mktemp("alone")))
    assert verdict.culprits == []
    assert [one.ranks for one in verdict.undecided] == [(0, 1)]
    pairs = {str(pair): [2 * pair, 2 * pair + 1] for pair in range(1, 4)}
    programs = {rank: [Call(str(rank // 2), size=8 if rank == 4 else 4)] for rank in range(2, 8)}
    job = Job({"0": range(8), **pairs}, programs).play()
    for rank in programs:
        made = job.dump(rank)
        for entry in made["entries"]:
            entry["process_group"] = (entry["process_group"][0], "TENSOR")
        for group in made["pg_config"].values():
            group["desc"] = "TENSOR" if group["name"] != "0" else "default_pg"
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    assert kinds(analyze(tmp_path)) == {4: "size_mismatch"}


def test_two_groups_in_different_orders(tmp_path: Path) -> None:
    """The rank that takes two groups in another order than most is named."""
    usual, other = [Call("0"), Call("1")], [Call("1", line=77), Call("0")]
    groups = {"0": range(4), "1": range(4)}
    verdict = analyze(Job(groups, world(2, other, usual, usual * 3)).play().write(tmp_path))
    assert kinds(verdict) == {2: "wrong_order"}
    assert lines(verdict) == {"train.py:77 step"}


def pipeline(rank: int) -> list[Call]:
    receive = [Call("p", "recv", peer=rank - 1, line=60)] if rank else []
    send = [Call("p", "send", peer=rank + 1, line=61, blocks=False)] if rank < 3 else []
    return [*receive, *send, Call("0", line=62)]


@pytest.mark.parametrize("but", [[], [1]])
def test_a_pipeline(but: list[int], tmp_path: Path) -> None:
    """Sends and receives count per rank; stages after the stuck one wait for it and are not named."""
    programs = {rank: [*pipeline(rank) * 3, *([Stuck()] if rank == 1 else pipeline(rank))] for rank in range(4)}
    job = Job({"0": range(4), "p": range(4)}, programs).play()
    assert kinds(analyze(job.write(tmp_path, but=but))) == {1: "no_dump" if but else "host_stuck"}


def test_gloo_after_its_timeout(tmp_path: Path) -> None:
    """What has timed out counts as done with gloo; the rank that never called it is named all the same."""
    job = Job(WORLD, world(1, [Stuck()], STEPS), "gloo").play()
    for rank in range(4):
        made = job.dump(rank)
        for entry in made["entries"]:
            entry["retired"] = True
        for status in made["pg_status"].values():
            status["last_completed_collective"] = status["last_enqueued_collective"]
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    assert kinds(analyze(tmp_path)) == {1: "host_stuck"}


@pytest.mark.parametrize(("backend", "named"), [("gloo", {2: "no_dump"}), ("nccl", {})])
def test_gloo_after_a_peer_was_gone(backend: str, named: dict[int, str], tmp_path: Path) -> None:
    """With gloo what failed counts as done, so that the only missing dump is what is left; NCCL's would be pending."""
    job = Job(WORLD, dict.fromkeys(range(4), STEPS), backend).play()
    verdict = analyze(job.write(tmp_path, but=[2]))
    assert kinds(verdict) == named
    assert bool(verdict.undecided) == (not named)


def test_healthy(tmp_path: Path) -> None:
    """A run in which nothing is pending has no culprit, and no rank that is slow by chance."""
    verdict = analyze(Job(GRID, grid(0, ())).play().write(tmp_path))
    assert (verdict.state, verdict.culprits, verdict.undecided) == ("moving", [], [])


def test_counts_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """Finished counts that differ by one or two, on many ranks, are how a watchdog looks and no fault."""
    job = Job(GRID, grid(0, ())).play()
    for rank in range(8):
        made = job.dump(rank, only_active=True)
        for index, status in enumerate(made["pg_status"].values()):
            status["last_enqueued_collective"] += 3
            status["last_completed_collective"] += (rank + index) % 3
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    assert analyze(tmp_path).culprits == []


@pytest.mark.parametrize(
    ("late", "named"), [({3: 2}, set()), ({3: 3}, {3}), ({1: 5, 2: 5, 3: 5}, set()), ({0: 5, 1: 5}, {0, 1})]
)
def test_how_far_behind_a_gpu_must_be(late: dict[int, int], named: set[int], tmp_path: Path) -> None:
    """In one group two are usual; where most are behind, the one ahead is the odd one and nobody is named."""
    programs = {rank: [Call("all"), *([REDUCE] * 10 if rank < 4 else [])] for rank in range(16)}
    job = Job({**WORLD, "all": range(16)}, programs).play()
    job.write(tmp_path)
    for rank in range(4):
        made = job.dump(rank)
        made["entries"][-1].update(retired=False, state="scheduled")
        status = next(iter(made["pg_status"].values()))
        status["last_enqueued_collective"] += 1
        made["entries"].append({**made["entries"][-1], "collective_seq_id": status["last_enqueued_collective"]})
        status["last_completed_collective"] -= late.get(rank, 0)
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    assert set(kinds(analyze(tmp_path))) == named


def test_two_groups_of_one_name(tmp_path: Path) -> None:
    """Groups that are named alike and have other members are told apart."""
    groups = {"a": [0, 1], "b": [2, 3], "0": range(4)}
    programs = {
        0: [*[Call("a")] * 2, Call("0")],
        1: [*[Call("a")] * 2, Call("0")],
        2: [*[Call("b")] * 8, Call("0")],
        3: [*[Call("b")] * 7, Stuck()],
    }
    job = Job(groups, programs).play()
    for rank in range(4):
        text = json.dumps(job.dump(rank)).replace('"b"', '"a"').replace('"Gb"', '"Ga"')
        (tmp_path / f"_dump_{rank}").write_text(text)
    verdict = analyze(tmp_path)
    assert kinds(verdict) == {3: "host_stuck"}
    assert sorted(one.missing for one in (verdict.blocked_first, *verdict.cascade) if one) == [(2, 3), (3,)]


@pytest.mark.parametrize("waits", [False, True])
def test_slow(waits: bool, tmp_path: Path) -> None:
    """The rank for which the others wait each time is slow; a clock that is off is not, where waits are on record."""
    job = Job(WORLD, dict.fromkeys(range(4), STEPS * 3)).play()
    for rank in range(4):
        made = job.dump(rank)
        for number, entry in enumerate(made["entries"]):
            late = 40 * MILLISECOND if rank == 3 else rank * MILLISECOND
            entry["time_created_ns"] = START + number * 100 * MILLISECOND + late
            if waits:
                entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 50 * MILLISECOND - late
                entry["time_created_ns"] += 10**9 if rank == 1 else 0
                entry["time_discovered_completed_ns"] += 10**9 if rank == 1 else 0
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    verdict = analyze(tmp_path)
    assert (kinds(verdict), verdict.state) == ({3: "slow"}, "slow")


@pytest.mark.parametrize("name", CULPRITS)
def test_real_dumps(name: str) -> None:
    """The culprits of two real 16-rank jobs, and nobody else."""
    verdict = analyze(REAL / name)
    assert kinds(verdict) == CULPRITS[name]
    assert (len(verdict.ranks), verdict.damaged, verdict.undecided) == (16, {}, [])


@pytest.fixture(params=CULPRITS)
def real(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A copy of a real set to change."""
    shutil.copytree(REAL / request.param, tmp_path / "copy")
    return request.param, tmp_path / "copy"


@pytest.mark.parametrize("receiving", [(9, 14), (9,), (14,), tuple(range(8, 16))])
def test_a_stuck_rank_with_a_receive_that_is_met(receiving: Sequence[int], tmp_path: Path) -> None:
    """A receive that was posted ahead, and whose send is pending as well, does not acquit a rank that others miss."""
    folder = shutil.copytree(REAL / "lock_gil_1st", tmp_path / "copy")
    sent = pickle.loads((folder / "_dump_1").read_bytes())["entries"][0]
    for rank in receiving:
        made = pickle.loads((folder / f"_dump_{rank}").read_bytes())
        group = next(one for one in made["pg_config"].values() if one["desc"].startswith("PIPELINE"))
        named = (group["name"], group["desc"])
        entry = {**sent, "process_group": named, "profiling_name": "nccl:recv 1<-0", "p2p_seq_id": 14147}
        made["entries"].insert(0, entry)
        made["pg_status"]["6"]["last_enqueued_collective"] = 14147
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    assert kinds(analyze(folder)) == CULPRITS["lock_gil_1st"]


def test_a_count_that_holds_sends(real: tuple[str, Path]) -> None:
    """A count that is behind without an operation pending in that group is of point-to-point operations, and no GPU."""
    name, folder = real
    made = pickle.loads((folder / "_dump_3").read_bytes())
    made["pg_status"]["0"] = {"last_enqueued_collective": 20_000, "last_completed_collective": 100}
    (folder / "_dump_3").write_bytes(pickle.dumps(made, 2))
    assert kinds(analyze(folder)) == CULPRITS[name]


def test_json_and_pickles_in_one_folder(real: tuple[str, Path]) -> None:
    """Formats and file names may differ from rank to rank."""
    name, folder = real
    names = ("nccl_trace_rank_{}.json", "comm_lib_trace_rank_{}", "rank-{}.json", "_dump_{}")
    for rank in range(16):
        path = folder / f"_dump_{rank}"
        data = path.read_bytes()
        path.unlink()
        chosen = names[rank % 4].format(rank)
        (folder / chosen).write_bytes(as_json(pickle.loads(data)) if chosen.endswith("json") else data)
    assert kinds(analyze(folder)) == CULPRITS[name]


def test_names_that_say_no_rank(real: tuple[str, Path]) -> None:
    """Which rank a dump is of follows from the groups that it is in."""
    name, folder = real
    for rank in range(16):
        (folder / f"_dump_{rank}").rename(folder / f"trace-{chr(97 + rank)}")
    assert kinds(analyze(folder)) == CULPRITS[name]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_file_cut_short(real: tuple[str, Path], share: float) -> None:
    """A dump of another rank that was cut short makes nobody a culprit, and is reported."""
    name, folder = real
    path = folder / "_dump_3"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    verdict = analyze(folder)
    assert kinds(verdict) == CULPRITS[name]
    assert list(verdict.damaged) == ["_dump_3"]


def test_culprits_without_a_dump(real: tuple[str, Path]) -> None:
    """Culprits are named where their files are missing or empty."""
    name, folder = real
    for index, rank in enumerate(CULPRITS[name]):
        (folder / f"_dump_{rank}").write_bytes(b"") if index else (folder / f"_dump_{rank}").unlink()
    assert kinds(analyze(folder)) == dict.fromkeys(CULPRITS[name], "no_dump")


def test_formats_without_a_status(real: tuple[str, Path]) -> None:
    """Before PyTorch 2.5 there is no status; entries say how far a rank has come."""
    name, folder = real
    for rank in range(16):
        made = pickle.loads((folder / f"_dump_{rank}").read_bytes())
        del made["pg_status"]
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps({**made, "version": "2.4"}, 2))
    assert kinds(analyze(folder)) == CULPRITS[name]


def test_counts_alone(real: tuple[str, Path]) -> None:
    """Dumps without entries have the counts of the groups, and those suffice."""
    name, folder = real
    for rank in range(16):
        made = pickle.loads((folder / f"_dump_{rank}").read_bytes())
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps({**made, "entries": []}, 2))
    assert kinds(analyze(folder)) == CULPRITS[name]


def test_two_attempts_in_folders(tmp_path: Path) -> None:
    """Of two attempts the later one is analysed; the other is named as left out."""
    shutil.copytree(REAL / "gpu_error_1st", tmp_path / "attempt_0")
    shutil.copytree(REAL / "lock_gil_1st", tmp_path / "attempt_1")
    verdict = analyze(tmp_path)
    assert kinds(verdict) == CULPRITS["lock_gil_1st"]
    assert len(verdict.other_attempts) == 16


def test_two_attempts_by_time(tmp_path: Path) -> None:
    """In one folder the names that belong together are one attempt, and the one with the newest call is analysed."""
    shutil.copytree(REAL / "lock_gil_1st", tmp_path / "dumps")
    for path in (REAL / "gpu_error_1st").iterdir():
        shutil.copy(path, tmp_path / "dumps" / f"nccl_trace_rank_{path.name.rpartition('_')[2]}")
    assert kinds(analyze(tmp_path / "dumps")) == CULPRITS["gpu_error_1st"]


def test_a_dump_that_an_earlier_attempt_left(tmp_path: Path) -> None:
    """One that ends long before all others begin, at other numbers, is of an earlier one: its rank has left none."""
    job = Job(WORLD, world(1, [Stuck()], STEPS)).play()
    job.write(tmp_path)
    made = job.dump(1)
    for entry in made["entries"]:
        entry["time_created_ns"] -= 3600 * 10**9
        entry["collective_seq_id"] += 900
    (tmp_path / "_dump_1").write_bytes(pickle.dumps(made, 2))
    verdict = analyze(tmp_path)
    assert kinds(verdict) == {1: "no_dump"}
    assert verdict.other_attempts == ["_dump_1 (rank 1)"]


@pytest.mark.parametrize("ahead", [[2, 3], [1], [3], [0, 1, 2]])
def test_clocks_of_nodes_that_differ_by_more_than_short_rings_hold(ahead: list[int], tmp_path: Path) -> None:
    """Ranks that have come as far as the others are of their attempt, whatever the clock of their node says."""
    job = Job(WORLD, world(1, [Stuck()], STEPS)).play()
    for rank in range(4):
        made = job.dump(rank, ring=3)
        for entry in made["entries"] if rank in ahead else ():
            for name in entry.keys() & {
                "time_created_ns",
                "time_discovered_started_ns",
                "time_discovered_completed_ns",
            }:
                entry[name] = entry[name] and entry[name] + 90 * 10**9
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    verdict = analyze(tmp_path)
    assert (kinds(verdict), verdict.other_attempts) == ({1: "host_stuck"}, [])


def test_folders_of_nodes_are_one_attempt(tmp_path: Path) -> None:
    """Folders with numbers that have no rank in common are nodes of one run."""
    job = Job(WORLD, world(1, [Stuck()], STEPS)).play()
    job.write(tmp_path / "0", but=[2, 3])
    job.write(tmp_path / "1", but=[0, 1])
    assert kinds(analyze(tmp_path)) == {1: "host_stuck"}


def test_rings_that_overran(tmp_path: Path) -> None:
    """What a ring no longer holds was not skipped: rings begin at different calls, and one group is in none."""
    programs = {rank: [Call("1"), *world(2, [Stuck()], STEPS * 4)[rank]] for rank in range(4)}
    job = Job({**WORLD, "1": range(4)}, programs).play()
    for rank in range(4):
        made = job.dump(rank, ring=3 + 2 * rank)
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    assert kinds(analyze(tmp_path)) == {2: "host_stuck"}


def test_a_group_with_two_backends(tmp_path: Path) -> None:
    """NCCL and gloo count on their own in one group, and have a recorder each."""
    nccl = Job(WORLD, world(1, [Stuck()], STEPS)).play()
    gloo = Job(WORLD, dict.fromkeys(range(4), [Call("0", "barrier")] * 30), "gloo").play()
    nccl.write(tmp_path, names="nccl_trace_rank_{}")
    gloo.write(tmp_path, names="gloo_trace_rank_{}.json")
    verdict = analyze(tmp_path)
    assert kinds(verdict) == {1: "host_stuck"}
    assert verdict.backends == ("gloo", "nccl")


def test_numbers_of_groups_are_each_ranks_own(tmp_path: Path) -> None:
    """The same number is another group on another rank, and groups that no entry names are found by their order."""
    job = Job(GRID, grid(5, [Stuck()])).play()
    numbers = {
        rank: {entry["process_group"][0]: entry["pg_id"] for entry in job.dump(rank)["entries"]} for rank in (0, 5)
    }
    assert numbers[0] != numbers[5]
    for rank in range(8):
        made = job.dump(rank, only_active=True)
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(made, 2))
    assert kinds(analyze(tmp_path)) == {5: "host_stuck"}


def test_a_box_with_its_stack(tmp_path: Path) -> None:
    """A file that holds recorders beside the members of groups and the rank's place: its line is the one to show."""
    job = Job(GRID, grid(5, [Stuck()]), "gloo").play()
    for rank in range(8):
        box = {
            "rank": rank, "world_size": 8, "where": "data.py:88 load_shard, in open()",
            "groups": {name: {"ranks": list(members)} for name, members in GRID.items() if rank in members},
            "flight_recorder": {"gloo": job.dump(rank)},
        }  # fmt: skip
        (tmp_path / f"box{rank}.json").write_text(json.dumps(box))
    verdict = analyze(tmp_path)
    assert kinds(verdict) == {5: "host_stuck"}
    assert lines(verdict) == {"data.py:88 load_shard, in open()"}


@pytest.mark.parametrize(("category", "named"), [("collective", {1: "no_dump"}), ("data", {3: "host_stuck"})])
def test_boxes_of_ranks_whose_collective_raised(category: str, named: dict[int, str], tmp_path: Path) -> None:
    """With gloo a call that raised counts as done; who is behind by one only because it raised there is a victim."""
    job = Job(WORLD, world(3, [Stuck()], STEPS), "gloo").play()
    for rank in (0, 2, 3):
        made = job.dump(rank)
        for entry in made["entries"]:
            entry["retired"] = True
        for status in made["pg_status"].values():
            status["last_completed_collective"] = status["last_enqueued_collective"]
        groups = {name: {"ranks": list(members)} for name, members in WORLD.items()}
        failure = {"category": category if rank == 3 else "collective", "message": "RuntimeError"}
        box = {"rank": rank, "world_size": 4, "groups": groups, "failure": failure, "recorders": {"gloo": made}}
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(box))
    assert kinds(analyze(tmp_path)) == named


def test_boxes_of_which_some_are_of_failures(tmp_path: Path) -> None:
    """One rank fails by itself, its partner's collective raises, two still wait for both: only the first is named."""
    programs = {rank: [*pairs_step(rank) * 4, *([Stuck()] if rank == 2 else pairs_step(rank))] for rank in range(4)}
    job = Job(PAIRS, programs, "gloo").play()
    for rank, category in enumerate(("", "", "data", "collective")):
        made = job.dump(rank)
        if rank == 3:
            made["entries"][-1]["retired"] = True
        groups = {name: {"ranks": list(members)} for name, members in PAIRS.items() if rank in members}
        box = {
            "rank": rank,
            "world_size": 4,
            "reason": "no step for 12 s",
            "groups": groups,
            "recorders": {"gloo": made},
        }
        if category:
            box |= {"reason": f"failed: {category}", "failure": {"category": category, "message": "E: shard 8"}}
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(box))
    verdict = analyze(tmp_path)
    assert kinds(verdict) == {2: "failed"}
    assert verdict.culprits[0].reason.endswith("it raised E: shard 8")


def test_the_last_box_of_each_rank_counts(tmp_path: Path) -> None:
    """The boxes before it are of earlier moments; where there is no last one, the one before it is looked at."""
    for name, stuck in (("rank-{}.1.json", 3), ("rank-{}.json", 5)):
        job = Job(GRID, grid(stuck, [Stuck()]), "gloo").play()
        for rank in range(8):
            (tmp_path / name.format(rank)).write_text(json.dumps({"rank": rank, "recorders": {"gloo": job.dump(rank)}}))
    assert kinds(analyze(tmp_path)) == {5: "host_stuck"}
    for rank in range(8):
        (tmp_path / f"rank-{rank}.json").unlink()
    assert kinds(analyze(tmp_path)) == {3: "host_stuck"}


@pytest.mark.parametrize("name", CULPRITS)
def test_several_processes_read_what_one_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that several processes have read say the same, to the last line, as if one had."""
    alone = analyze(REAL / name)
    monkeypatch.setattr(folder, "_workers", lambda _: 2)
    monkeypatch.setattr(folder, "PART_FILES", 3)
    assert analyze(REAL / name) == alone


def test_files_of_several_processes_disagree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are compared across processes, each of which has numbered what it saw by itself."""
    monkeypatch.setattr(folder, "_workers", lambda _: 2)
    monkeypatch.setattr(folder, "PART_FILES", 1)
    programs = {rank: [Call("0", size=7 if rank == 2 else 4)] for rank in range(4)}
    verdict = analyze(Job({"0": range(4)}, programs).play().write(tmp_path))
    assert kinds(verdict) == {2: "size_mismatch"}


def test_a_thousand_ranks(tmp_path: Path) -> None:
    """1,024 ranks in 264 groups: the stuck one is named, and the graph of waits stays small."""
    groups = {"0": range(1024)}
    groups |= {str(1 + pod): range(8 * pod, 8 * pod + 8) for pod in range(128)}
    groups |= {str(200 + lane): range(lane, 1024, 8) for lane in range(8)}
    step = {rank: [Call(str(1 + rank // 8)), Call(str(200 + rank % 8)), Call("0")] for rank in range(1024)}
    programs = {rank: [*step[rank], *([Stuck()] if rank == 777 else step[rank])] for rank in range(1024)}
    verdict = analyze(Job(groups, programs).play().write(tmp_path))
    assert kinds(verdict) == {777: "host_stuck"}


PAIRS = {"0": range(4), "1": [0, 1], "2": [2, 3]}


def pairs_step(rank: int, blocks: bool = True) -> list[Call]:
    return [
        Call(str(1 + rank // 2), line=30, blocks=blocks),
        Call("0", line=50, blocks=blocks),
        Call("0", "broadcast", line=60, blocks=blocks),
    ]


@pytest.mark.parametrize(("backend", "rounds"), [("nccl", 0), ("nccl", 4), ("gloo", 1), ("gloo", 4)])
@pytest.mark.parametrize("odd", [0, 2, 3])
def test_a_call_of_its_pair_that_a_rank_skipped(backend: str, rounds: int, odd: int, tmp_path: Path) -> None:
    """Its partner waits in the pair and is missed by all: the other pair, or earlier rounds, show which comes first."""
    programs = {
        rank: [*pairs_step(rank) * rounds, *pairs_step(rank)[rank == odd :], *pairs_step(rank) * 2] for rank in range(4)
    }
    verdict = analyze(Job(PAIRS, programs, backend).play().write(tmp_path))
    assert kinds(verdict) == {odd: "skipped_collective"}
    assert lines(verdict) == {"train.py:30 step"}


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_call_of_its_pair_that_a_rank_made_too_early(rounds: int, tmp_path: Path) -> None:
    """The same picture the other way round: who waits in the pair is wrong, if all others come from the world first."""

    def step(rank: int) -> list[Call]:
        return [Call("0", line=50), Call("0", "broadcast", line=60), Call(str(1 + rank // 2), line=30)]

    programs = {rank: [*step(rank) * rounds, *step(rank)[2 * (rank == 2) :], *step(rank)] for rank in range(4)}
    others = analyze(Job(PAIRS, programs).play().write(tmp_path))
    assert kinds(others) == {2: "skipped_collective"}


@pytest.mark.parametrize("rounds", [0, 4])
def test_a_pair_alone_of_which_one_skips_a_call(rounds: int, tmp_path: Path) -> None:
    """Without another pair, earlier rounds tell; without these, who went on to the world without its pair."""
    groups = {"0": range(4), "2": [2, 3]}

    def step(rank: int) -> list[Call]:
        return [*([Call("2", line=30)] if rank > 1 else []), Call("0", line=50)]

    programs = {rank: [*step(rank) * rounds, *step(rank)[rank == 2 :], *step(rank)] for rank in range(4)}
    verdict = analyze(Job(groups, programs).play().write(tmp_path))
    assert (kinds(verdict), lines(verdict)) == ({2: "skipped_collective"}, {"train.py:30 step"})


def test_a_call_of_the_world_that_one_of_a_pair_alone_skipped(tmp_path: Path) -> None:
    """Earlier rounds outweigh that its partner went on to the larger group."""

    def step(rank: int) -> list[Call]:
        return [Call("0", line=50), *([Call("2", line=30)] if rank > 1 else [])]

    programs = {rank: [*step(rank) * 4, *step(rank)[rank == 2 :], *step(rank)] for rank in range(4)}
    verdict = analyze(Job({"0": range(4), "2": [2, 3]}, programs).play().write(tmp_path))
    assert (kinds(verdict), lines(verdict)) == ({2: "skipped_collective"}, {"train.py:50 step"})


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize("left_out", ["send", "recv"])
def test_a_send_or_receive_that_a_stage_skipped(rounds: int, left_out: str, tmp_path: Path) -> None:
    """A stage that goes on to the collective of all without its message is named, not the stage that waits for it."""
    programs = {
        rank: [
            *pipeline(rank) * rounds,
            *(call for call in pipeline(rank) if not (rank == 1 and call.name == left_out)),
            *pipeline(rank),
        ]
        for rank in range(4)
    }
    for program in programs.values():
        program[:] = [Call(c.group, c.name, line=c.line, peer=c.peer) for c in program]
    verdict = analyze(Job({"0": range(4), "p": range(4)}, programs).play().write(tmp_path))
    assert (kinds(verdict), lines(verdict)) == (
        {1: "skipped_collective"},
        {"train.py:60 step" if left_out == "send" else "train.py:61 step"},
    )


def test_a_gpu_that_has_not_finished_what_its_pair_has(tmp_path: Path) -> None:
    """Where the host waits for each call, the GPU is behind by a single one, and the pair waits for the next."""
    job = Job(GRID, grid(5, [Stuck(gpu=True), *grid_step(5)])).play()
    verdict = analyze(job.write(tmp_path))
    assert kinds(verdict) == {5: "gpu_stuck"}
    assert verdict.undecided == []


def test_half_of_the_ranks_make_a_call_that_the_others_do_not(tmp_path: Path) -> None:
    """As many have made a call too many as have left one out: which it is, nobody can tell."""
    steps = {rank: grid_step(rank)[:2] for rank in range(8)}
    extra = [Call("0", "barrier", line=77)]
    programs = {rank: [*step * 3, *(extra if rank < 4 else ()), *step] for rank, step in steps.items()}
    job = Job(GRID, programs).play()
    verdict = analyze(job.write(tmp_path))
    assert verdict.culprits == []
    assert [one.ranks for one in verdict.undecided] == [tuple(range(8))]


def test_no_dump_of_a_rank_that_needs_the_calls_of_the_one_that_is_stuck(tmp_path: Path) -> None:
    """Beside a stuck rank its pair cannot get on, whether it left a dump or not."""
    job = Job(GRID, grid(5, [Stuck()])).play()
    verdict = analyze(job.write(tmp_path, but=[4]))
    assert kinds(verdict) == {5: "host_stuck"}
    assert [one.ranks for one in verdict.undecided] == [(4,)]
    assert "without rank 5" in verdict.undecided[0].why
