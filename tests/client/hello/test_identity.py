"""Who a process is, by what its launcher left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.hello import identity as module
from tachograph.client.hello.identity import Identity, discover
from tachograph.client.hello.workload import Workload


def find(environment: dict[str, str] | None = None, **given: Any) -> Identity:
    """Discover, as user ada."""
    return discover(given, environment or {}, user=lambda: "ada")


TORCHRUN = {
    "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8",
    "TORCHELASTIC_RUN_ID": "llama", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
}  # fmt: skip
BATCH_SCRIPT = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "64"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
MVAPICH2 = {"MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_SIZE": "4"}
HYDRA = {"PMI_RANK": "2", "MPI_LOCALRANKID": "1", "PMI_SIZE": "4"}


def test_alone() -> None:
    """Without a launcher: rank 0 of one, in a run named after the user."""
    assert find() == Identity("local-ada", 0, 0, 1, 0, 0)


def test_torchrun() -> None:
    """Torchrun's variables, restart count as attempt."""
    assert find(TORCHRUN) == Identity("llama", 5, 1, 8, 2, 0)


@pytest.mark.parametrize("more", [{}, SLURM])
def test_torchruns_none_is_no_name(more: dict[str, str]) -> None:
    """A static rendezvous calls every run "none": the Slurm job names it, else the user."""
    found = find({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", **more})
    assert (found.run, found.rank, found.refused) == ("4711" if more else "local-ada", 5, 0)


def test_slurm_and_its_arrays() -> None:
    """Slurm's variables; each task of an array is a run of its own."""
    assert find(SLURM) == Identity("4711", 3, 1, 4, 0, 0)
    array = {**SLURM, "SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "9", "SLURM_RESTART_COUNT": "1"}
    assert (find(array).run, find(array).attempt) == ("4700_9", 1)


def test_a_batch_script_is_one_process() -> None:
    """Slurm gives the script itself a task number, and the tasks that the job may start; only srun starts them."""
    assert find(BATCH_SCRIPT) == Identity("4711", 0, 0, 1, 0, 0)


@pytest.mark.parametrize("mpi", [OPEN_MPI, MVAPICH2, HYDRA], ids=["Open MPI", "MVAPICH2", "Hydra"])
@pytest.mark.parametrize("job", [{}, BATCH_SCRIPT, SLURM], ids=["alone", "first node", "other node"])
def test_mpi(mpi: dict[str, str], job: dict[str, str]) -> None:
    """MPI's variables; in a Slurm job mpirun's processes inherit the task number of what started them: not theirs."""
    assert find({**job, **mpi}) == Identity("4711" if job else "local-ada", 2, 1, 4, 0, 0)


@pytest.mark.parametrize(
    ("torchrun", "slurm", "attempt"), [("0", "3", 3), ("2", "1", 2), ("2", "x", 2), ("2", None, 2), (None, None, 0)]
)
def test_the_attempt_is_the_larger_count(torchrun: str | None, slurm: str | None, attempt: int) -> None:
    """A job that Slurm requeued begins with a new torchrun, whose own count is 0 again."""
    counts = {"TORCHELASTIC_RESTART_COUNT": torchrun, "SLURM_RESTART_COUNT": slurm}
    found = find({name: count for name, count in counts.items() if count is not None})
    assert (found.attempt, found.refused) == (attempt, int(slurm == "x"))
    assert find({"TACHOGRAPH_ATTEMPT": "1", "SLURM_RESTART_COUNT": "5"}).attempt == 1


def test_the_order() -> None:
    """An argument beats TACHOGRAPH_*, which beats torchrun, which beats Slurm; each field by itself."""
    ours = {"TACHOGRAPH_RUN": "mine", "TACHOGRAPH_RANK": "7", "TACHOGRAPH_ATTEMPT": "9"}
    assert find({**SLURM, **TORCHRUN, **ours}, rank=6) == Identity("mine", 6, 1, 8, 9, 0)


def test_an_initialised_process_group_knows_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes made by torch.multiprocessing have no variables; Slurm's would be the launcher's and wrong."""
    distributed = SimpleNamespace(get_rank=lambda: 2, get_world_size=lambda: 3)
    monkeypatch.setattr(module, "in_use", lambda part: distributed)
    assert (find(SLURM).rank, find(SLURM).world_size) == (2, 3)
    assert find(TORCHRUN).rank == 5


@pytest.mark.parametrize("wrong", ["-1", "1.5", "x", "9" * 400, str(2**31), "１２x"])
def test_wrong_numbers_are_passed_over_and_counted(wrong: str) -> None:
    """An invalid rank falls through to the next source."""
    found = find({**SLURM, "RANK": wrong})
    assert (found.rank, found.refused) == (3, 1)


@pytest.mark.parametrize("wrong", [5, True, "", "  ", "x" * 129, "訓" * 43, "new\nline", b"run", ["run"], {"run"}])
def test_wrong_names_are_passed_over(wrong: Any) -> None:
    """A name is printable text of at most 128 bytes in UTF-8; nothing else raises."""
    assert find(SLURM, run=wrong).run == "4711"


def test_arguments_of_wrong_types_are_counted() -> None:
    """Hostile arguments cost themselves only."""
    found = find(rank="three", local_rank=1.5, world_size=True, attempt=[1], run=object())
    assert found == Identity("local-ada", 0, 0, 1, 0, 5)


def test_a_world_holds_its_rank() -> None:
    """A rank without a known world size is in the smallest world it fits in."""
    assert find(rank=5).world_size == 6


def test_amounts_per_step_are_shared() -> None:
    """Tokens, samples and FLOPs of a step are the run's; a rank's share is whole where it can be."""
    workload = Workload(8, tokens_per_step=4_194_304, flops_per_token=4.6e10, samples_per_step=9)
    assert workload.per_step == {
        "tokens_total": 524_288, "samples_total": 1.125, "flops_total": pytest.approx(4.6e10 * 524_288),
    }  # fmt: skip
    assert isinstance(workload.per_step["tokens_total"], int)


def test_flops_per_step_beats_flops_per_token() -> None:
    """Arguments take precedence over the environment."""
    assert Workload(2, tokens_per_step=10, flops_per_token=5, flops_per_step=80).per_step["flops_total"] == 40


def test_wrong_amounts_and_facts_are_counted() -> None:
    """Zero, negative, infinite, and values that are not a number or name."""
    workload = Workload(
        1, tokens_per_step=0, samples_per_step=-1, flops_per_step=float("inf"), flops_per_token="x", peak_flops=[],
        precision=7, global_batch=1.5,
    )  # fmt: skip
    assert (workload.per_step, workload.refused) == ({}, 7)
    assert set(workload.facts) <= {"framework"}


def test_flops_per_token_needs_tokens() -> None:
    """Without tokens per step there is no FLOP count, and nothing was wrong."""
    workload = Workload(1, flops_per_token=6e9)
    assert (workload.per_step, workload.refused) == ({}, 0)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    """An argument parser, a sampler or a checkpoint gives them: rank 3 must not become rank 0."""
    numpy = pytest.importorskip("numpy")
    found = find(rank=numpy.int64(3), world_size=numpy.uint32(8))
    assert (found.rank, found.world_size, found.refused) == (3, 8, 0)
    workload = Workload(2, tokens_per_step=numpy.int64(4_194_304), flops_per_token=numpy.float32(2.0))
    assert workload.per_step == {"tokens_total": 2_097_152, "flops_total": 4_194_304}
    assert find(rank=numpy.arange(3)).refused == 1
