"""The resilient example under a real torchrun: what interrupts it costs no bit, and a bad batch is left out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tachograph.supervise import policy
from tachograph_lab.processes import free_port
from tests.supervise.conftest import Supervised, is_running, until
from tests.torch_programs import TorchProgram, TorchPrograms

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

TRAIN = Path(__file__).resolve().parents[2] / "examples/resilient/train.py"
STEPS, EVERY = 120, 20
RANKS = 3
"""More than two, whose sums differ in their last bits if they are added up in another order."""
Losses = Mapping[int, list[str]]
Uninterrupted = Callable[..., Losses]


def losses(folder: Path, rank: int) -> Losses:
    """Every loss of a rank, exact, by step: one for each time that it made the step."""
    found: dict[int, list[str]] = {}
    for line in (folder / f"losses-{rank}").read_text().splitlines():
        first, second, _ = line.split()
        if first != "attempt":
            found.setdefault(int(first), []).append(second)
    return found


def attempts(folder: Path, rank: int) -> list[int]:
    """The process of each attempt of a rank."""
    path = folder / f"losses-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[2]) for line in lines if line.startswith("attempt ")]


def start(torch_programs: TorchPrograms, folder: Path, ranks: int, *options: object, **plan: str) -> list[TorchProgram]:
    """Start the ranks of an attempt without a launcher, with the variables of a plan."""
    port = str(free_port())
    return [
        torch_programs.python(
            [TRAIN, "--folder", folder, *options],
            folder=folder, out=folder / f"out-{rank}", errors=folder / f"errors-{rank}",
            environment={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TACHOGRAPH_DISABLED": "1",
                **plan,
            },
        )
        for rank in range(ranks)
    ]  # fmt: skip


def finish(programs: list[TorchProgram], folder: Path) -> None:
    """Wait for ranks, which have to end well."""
    for rank, program in enumerate(programs):
        assert program.wait() == 0, (folder / f"errors-{rank}").read_text()


@pytest.fixture(scope="module")
def uninterrupted(torch_programs: TorchPrograms, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """The losses of a rank in a run that nothing happened to, perhaps without some steps."""

    @cache
    def trained(parallel: str, ranks: int, skip: str) -> Path:
        folder = tmp_path_factory.mktemp("uninterrupted")
        options = ("--steps", STEPS, "--every", EVERY, "--parallel", parallel)
        plan = {"TACHOGRAPH_PLAN_ATTEMPT": "0", "TACHOGRAPH_PLAN_SKIP": skip}
        finish(start(torch_programs, folder, ranks, *options, **plan), folder)
        return folder

    return lambda parallel, ranks, rank, skip="": losses(trained(parallel, ranks, skip), rank)


def train(
    supervised: Supervised, mode: str, *options: object, parallel: str = "ddp", ranks: int = 2
) -> tuple[subprocess.Popen[str], Path]:
    """Start the example under a supervisor that does not wait long; return it and the folder."""
    folder = supervised.folder / "trained"
    folder.mkdir()
    own = supervised.folder / "own.yml"
    own.write_text(policy.DEFAULT.read_text().replace("for: 20s", "for: 1s").replace("for: 2m", "for: 20s"))
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", ranks]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    given = ["--folder", folder, "--steps", STEPS, "--every", EVERY, "--parallel", parallel, *options]
    process = supervised.start(
        mode, [*torchrun, TRAIN, *given], "--policy", own, TACHOGRAPH_HANG_SECONDS="10"
    )  # fmt: skip
    until(lambda: (folder / "losses-1").exists() and len(losses(folder, 1)) > EVERY + 3, 200.0)
    return process, folder


def end(supervised: Supervised, process: subprocess.Popen[str]) -> str:
    """Return what a supervisor said, once it has ended well."""
    _, said = process.communicate(timeout=300.0)
    assert process.returncode == 0, said
    return said


def test_an_attempt_goes_on_exactly_where_the_one_before_was(torch_programs: TorchPrograms, tmp_path: Path) -> None:
    """After the death of a rank, without torchrun and a supervisor: every loss is that of a run without one."""
    options = ("--steps", 14, "--every", 5)
    whole, broken = (tmp_path / name for name in ("whole", "broken"))
    whole.mkdir()
    broken.mkdir()
    first, killed, *others = start(torch_programs, broken, RANKS, *options, "--fault", "kill@12")
    assert killed.wait() == -signal.SIGKILL
    for other in (first, *others):
        other.stop()
    finish(start(torch_programs, broken, RANKS, *options), broken)
    finish(start(torch_programs, whole, RANKS, *options), whole)
    for rank in range(RANKS):
        seen, expected = losses(broken, rank), losses(whole, rank)
        assert [{*values} for values in seen.values()] == [{*values} for values in expected.values()]
        assert list(seen) == [*range(14)]
        assert next(step for step, values in seen.items() if len(values) == 2) in (5, 10), "it began at a checkpoint"


def assert_made_again(folder: Path) -> None:
    """Two ranks have made every step, some of them twice, and then with the same loss, bit for bit."""
    for rank in range(2):
        made = losses(folder, rank)
        assert sorted(made) == list(range(STEPS))
        assert any(len(each) == 2 for each in made.values())
        assert all(len(set(each)) == 1 for each in made.values())


def assert_same(folder: Path, uninterrupted: Uninterrupted, parallel: str = "ddp", ranks: int = 2) -> None:
    """Every loss of every attempt is that of the uninterrupted run, and steps after the checkpoint were made twice."""
    for rank in range(ranks):
        seen, expected = losses(folder, rank), uninterrupted(parallel, ranks, rank)
        assert set(seen) == set(range(STEPS))
        assert {step: {*values} for step, values in seen.items()} == {
            step: {*values} for step, values in expected.items()
        }
        assert any(len(values) == 2 for values in seen.values())


@pytest.mark.slow
@pytest.mark.parametrize(("parallel", "ranks"), [("ddp", 2), ("ddp", 4), ("fsdp2", 4)])
def test_a_killed_rank_costs_no_bit(
    supervised: Supervised, uninterrupted: Uninterrupted, parallel: str, ranks: int
) -> None:
    """`kill -9` of a rank: torchrun ends, the supervisor starts it again, and the run goes on from its checkpoint."""
    process, folder = train(supervised, "act", parallel=parallel, ranks=ranks)
    os.kill(attempts(folder, 1)[-1], signal.SIGKILL)
    end(supervised, process)
    assert supervised.decisions() == [("act", "dead", "restart")]
    assert len(attempts(folder, 0)) == 2
    assert_same(folder, uninterrupted, parallel, ranks)


@pytest.mark.slow
def test_a_hanging_rank_costs_no_bit(supervised: Supervised, uninterrupted: Uninterrupted) -> None:
    """SIGSTOP of a rank: nobody ends by itself; the supervisor ends all of them, and starts again."""
    process, folder = train(supervised, "act")
    stopped = attempts(folder, 1)[-1]
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: len(attempts(folder, 1)) == 2, 200.0)
    assert not is_running(stopped)
    end(supervised, process)
    assert [one for one in supervised.decisions() if one[0] == "act"] == [("act", "frozen", "restart")]
    assert_same(folder, uninterrupted)


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_no_bit(supervised: Supervised, uninterrupted: Uninterrupted) -> None:
    """Cut short before its rank is killed: named, and the run goes on from the one before it."""
    process, folder = train(supervised, "act", "--fault", "corrupt@70", "--pace", "0.1")
    said = end(supervised, process)
    (decision,) = [one for one in supervised.entries() if one["kind"] == "decision"]
    assert decision["resume_step"] < max(step for step in range(0, 71, EVERY) if f"that of step {step}" in said)
    assert ".distcp" in decision["why"]
    assert_same(folder, uninterrupted)


@pytest.mark.slow
def test_a_rank_that_is_nan_once_costs_no_bit(supervised: Supervised, uninterrupted: Uninterrupted) -> None:
    """As of a GPU that computes wrongly: back to before it, and the same batches."""
    process, folder = train(supervised, "act", "--fault", "nan@30", "--pace", "0.25")
    end(supervised, process)
    assert supervised.decisions() == [("act", "loss_not_finite", "restart_from_checkpoint")]
    for rank in range(2):
        seen, expected = losses(folder, rank), uninterrupted("ddp", 2, rank)
        assert [values[-1] for _, values in sorted(seen.items())] == [one for _, (one,) in sorted(expected.items())]


@pytest.mark.slow
def test_a_bad_batch_is_left_out(supervised: Supervised, uninterrupted: Uninterrupted) -> None:
    """NaN at the same step again: it is left out with those around it, and nothing else differs, bit for bit.

    As many updates are made as planned, with the batches that follow.
    """
    process, folder = train(supervised, "act", "--fault", "bad_batch@30", "--pace", "0.25")
    end(supervised, process)
    assert supervised.decisions() == [
        ("act", "loss_not_finite", "restart_from_checkpoint"), ("act", "loss_not_finite", "skip_batches"),
    ]  # fmt: skip
    for rank in range(2):
        seen, expected = losses(folder, rank), uninterrupted("ddp", 2, rank, "28:38")
        assert max(seen) == max(expected) == STEPS + 9
        assert {step: seen[step][-1] for step in expected} == {step: one for step, (one,) in expected.items()}
    assert [len(seen[step]) for step in (27, 28, 30)] == [3, 2, 2]  # in each of three attempts, or in all but the last


@pytest.mark.slow
def test_shadow_mode_leaves_a_hang_alone(supervised: Supervised) -> None:
    """The same hang: the stopped rank is still there when it has been written what would be done."""
    process, folder = train(supervised, "shadow")
    stopped = attempts(folder, 1)[-1]
    os.kill(stopped, signal.SIGSTOP)
    until(supervised.decisions, 200.0)
    assert supervised.decisions() == [("would", "frozen", "restart")]
    assert is_running(stopped)
    os.kill(stopped, signal.SIGCONT)
    said = end(supervised, process)
    assert len(attempts(folder, 1)) == 1
    assert "would restart (shadow mode: nothing is done)" in said
