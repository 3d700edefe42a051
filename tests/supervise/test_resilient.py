"""The resilient example under a real torchrun: what a kill or a hang interrupts goes on bit for bit as without it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tachograph_lab.processes import free_port
from tests.supervise.conftest import Supervised, is_running, until
from tests.torch_programs import TorchPrograms

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

TRAIN = Path(__file__).resolve().parents[2] / "examples/resilient/train.py"
RANKS, STEPS, EVERY = 2, 120, 20
Losses = Mapping[int, list[str]]


def losses(folder: Path, rank: int) -> Losses:
    """Every loss of a rank, exact, by step: one for each time that it made the step."""
    found: dict[int, list[str]] = {}
    for line in (folder / f"losses-{rank}").read_text().splitlines():
        first, second, *more = line.split()
        if not more and second.startswith("0x"):
            found.setdefault(int(first), []).append(second)
    return found


def attempts(folder: Path, rank: int) -> list[int]:
    """The process of each attempt of a rank."""
    path = folder / f"losses-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[2]) for line in lines if line.startswith("attempt ")]


@pytest.fixture(scope="module")
def uninterrupted(torch_programs: TorchPrograms, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Losses]:
    """The losses of a run that nothing happened to."""
    folder, port = tmp_path_factory.mktemp("uninterrupted"), str(free_port())
    programs = [
        torch_programs.python(
            [TRAIN, "--folder", folder, "--steps", STEPS, "--every", EVERY], folder=folder,
            out=folder / f"out-{rank}", errors=folder / f"errors-{rank}",
            environment={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TACHOGRAPH_DISABLED": "1",
            },
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    for rank, program in enumerate(programs):
        assert program.wait() == 0, (folder / f"errors-{rank}").read_text()
    return lambda rank: losses(folder, rank)


def start(supervised: Supervised, mode: str) -> tuple[object, Path]:
    folder = supervised.folder / "trained"
    folder.mkdir()
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", RANKS]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", free_port()]
    process = supervised.start(
        mode, [*torchrun, TRAIN, "--folder", folder, "--steps", STEPS, "--every", EVERY], TACHOGRAPH_HANG_SECONDS="10"
    )
    until(lambda: (folder / "losses-1").exists() and len(losses(folder, 1)) > EVERY + 3)
    return process, folder


def assert_same(folder: Path, uninterrupted: Callable[[int], Losses]) -> None:
    """Every loss of every attempt is that of the uninterrupted run, and steps after the checkpoint were made twice."""
    for rank in range(RANKS):
        seen, expected = losses(folder, rank), uninterrupted(rank)
        assert set(seen) == set(range(STEPS))
        assert {step: {*values} for step, values in seen.items()} == {
            step: {*values} for step, values in expected.items()
        }
        assert any(len(values) == 2 for values in seen.values())


def test_a_killed_rank_costs_no_bit(supervised: Supervised, uninterrupted: Callable[[int], Losses]) -> None:
    """`kill -9` of a rank: torchrun ends, the supervisor starts it again, and the run goes on from its checkpoint."""
    process, folder = start(supervised, "act")
    os.kill(attempts(folder, 1)[-1], signal.SIGKILL)
    status, said = supervised.end(process)  # type: ignore[arg-type]
    assert status == 0, said
    assert supervised.decisions() == [("act", "dead", "restart")]
    assert len(attempts(folder, 0)) == 2
    assert_same(folder, uninterrupted)


@pytest.mark.slow
def test_a_hanging_rank_costs_no_bit(supervised: Supervised, uninterrupted: Callable[[int], Losses]) -> None:
    """SIGSTOP of a rank: nobody ends by itself; the supervisor ends all of them, and starts again."""
    process, folder = start(supervised, "act")
    stopped = attempts(folder, 1)[-1]
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: len(attempts(folder, 1)) == 2)
    assert not is_running(stopped)
    status, said = supervised.end(process)  # type: ignore[arg-type]
    assert status == 0, said
    assert [one for one in supervised.decisions() if one[0] == "act"] == [("act", "frozen", "restart")]
    assert_same(folder, uninterrupted)


@pytest.mark.slow
def test_shadow_mode_leaves_a_hang_alone(supervised: Supervised) -> None:
    """The same hang: the stopped rank is still there when it has been written what would be done."""
    process, folder = start(supervised, "shadow")
    stopped = attempts(folder, 1)[-1]
    os.kill(stopped, signal.SIGSTOP)
    until(supervised.decisions)
    assert supervised.decisions() == [("would", "frozen", "restart")]
    assert is_running(stopped)
    os.kill(stopped, signal.SIGCONT)
    status, said = supervised.end(process)  # type: ignore[arg-type]
    assert status == 0, said
    assert len(attempts(folder, 1)) == 1
    assert "would restart (shadow mode: nothing is done)" in said
