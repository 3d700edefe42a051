"""Every example runs on a CPU, with an exporter and without one, and what it is there to show is on /metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOOP = {"data", "forward", "backward", "optimizer"}

pytestmark = pytest.mark.torch

CASES = {
    "plain": ("plain.py", 0, 1000, LOOP | {"eval", "checkpoint"}),
    "example": ("ddp.py", 2, 1500, LOOP | {"checkpoint"}),
    "fsdp2": ("fsdp2.py", 2, 60, LOOP),
    "hsdp": ("fsdp2.py --replicas 2", 4, 60, LOOP),
    "tensor": ("tensor_parallel.py", 2, 60, LOOP),
    "mesh": ("mesh_2d.py", 4, 60, LOOP),
    "experts": ("experts.py", 2, 60, LOOP),
    "pipeline": ("pipeline.py", 2, 60, LOOP - {"forward"}),
    "huggingface": ("hf_trainer.py", 0, 200, LOOP | {"eval", "checkpoint"}),
    "lightning": ("lightning_trainer.py", 0, 400, LOOP | {"eval", "checkpoint"}),
    "grpo": ("grpo/train.py", 2, 40, LOOP | {"generate", "reward"}),
}
"""Run's name -> script and its options, ranks, steps (enough for the sender's second), phases it must show."""

PARALLEL = ("fsdp2", "hsdp", "tensor", "pipeline", "mesh", "experts")

SLOW = ("example", *PARALLEL, "huggingface", "lightning", "grpo")
"""Examples left to `make test-all`: tests/attach and tests/e2e run DDP, tests/client/torch the other parallelisms,
tests/integrations the trainers' callbacks."""

NO_LOSS = {("pipeline", 0)}
"""Ranks that know no loss: a pipeline's last stage has it."""


OF_ADVANTAGES = {"grpo"}
"""Runs whose loss may be below 0: the better half of the samples becomes more likely."""


def slow(*values: object) -> Any:
    """Return a parameter set that only `make test-all` takes."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def done(forked: Any) -> Any:
    """Runs an example once, whoever asks."""
    kept: dict[str, Any] = {}

    def run(name: str) -> Any:
        script, ranks, steps, _ = CASES[name]
        if name not in kept:
            file, *options = script.split()
            kept[name] = forked(EXAMPLES / file, *options, "--steps", str(steps), ranks=ranks)
        assert kept[name].status == 0, kept[name].errors
        return kept[name]

    return run


@pytest.mark.parametrize("name", ["plain", *map(slow, SLOW)])
def test_an_example_shows_its_steps_loss_and_phases(done: Any, name: str) -> None:
    """All steps of all ranks are counted once, the loss is there, and time is in the phases that the script has."""
    _, ranks, steps, phases = CASES[name]
    seen = done(name)
    for rank in range(max(ranks, 1)):
        assert seen.value("steps_total", run=name, rank=rank) == steps
        assert seen.value("step", run=name, rank=rank) == steps
        if (name, rank) not in NO_LOSS:
            loss = seen.value("loss", run=name, rank=rank)
            assert loss is not None
            assert -10 * (name in OF_ADVANTAGES) < loss < 10
        seconds = {
            phase: seen.value("phase_seconds_total", run=name, rank=rank, phase=phase) or 0.0 for phase in phases
        }
        # Only rank 0 of the DDP example saves.
        expected = phases - {"checkpoint"} if rank else phases
        assert {phase for phase in expected if seconds[phase] <= 0} == set()
        assert (seen.value("batches_total", run=name, rank=rank) or 0) >= steps


@pytest.mark.parametrize(("name", "per_step"), [("plain", 32), slow("huggingface", 8), slow("lightning", 64)])
def test_accumulated_micro_batches_are_one_step(done: Any, name: str, per_step: int) -> None:
    """With gradient accumulation a step counts once, with all of its samples."""
    steps = CASES[name][2]
    assert done(name).value("samples_total", run=name, rank=0) == steps * per_step


@pytest.mark.slow
def test_the_collectives_of_ddp_are_there(done: Any) -> None:
    """Each backward's gradient all-reduce is counted and its exposed wait measured, on both ranks."""
    seen = done("example")
    for rank in range(2):
        assert (seen.value("collectives_total", run="example", rank=rank, op="all_reduce") or 0) >= CASES["example"][2]
        assert (seen.value("collective_wait_seconds_total", run="example", rank=rank, op="all_reduce") or 0) > 0


@pytest.mark.slow
def test_the_collectives_of_fsdp_are_there(done: Any) -> None:
    """FSDP2 has no hook: its process group's sequence numbers move on both ranks. The norm that it returns is read."""
    seen = done("fsdp2")
    for rank in range(2):
        groups = seen.having("collective_enqueued", run="fsdp2", rank=rank)
        assert max(groups.values(), default=0) > 0
        assert (seen.value("grad_norm", run="fsdp2", rank=rank) or 0) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PARALLEL)
def test_the_waits_of_every_parallelism_are_there(done: Any, name: str) -> None:
    """`watch` alone measures how long a rank waits for the others, and where the rank is in the mesh is known."""
    seen = done(name)
    for rank in range(CASES[name][1]):
        assert (seen.value("collective_wait_seconds_total", run=name, rank=rank, op="other") or 0) > 0
        assert (seen.value("phase_seconds_total", run=name, rank=rank, phase="collective") or 0) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "lightning"])
def test_an_example_runs_without_an_exporter(name: str, tmp_path: Path) -> None:
    """No exporter: the script does the same, and says so in one line."""
    nobody = {"TACHOGRAPH_SOCKET": str(tmp_path / "nobody.sock"), "OMP_NUM_THREADS": "1", "PATH": ""}
    words = [sys.executable, "-W", "ignore", str(EXAMPLES / CASES[name][0]), "--steps", "20"]
    alone = subprocess.run(words, env=nobody, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert alone.returncode == 0, alone.stderr
    assert alone.stderr.count("no exporter at") == 1


@pytest.mark.slow
def test_the_plain_loop_goes_on_from_its_checkpoint(forked: Any, tmp_path: Path) -> None:
    """A second start finds the checkpoint, and tells from which step it resumed."""
    words = (EXAMPLES / "plain.py", "--every", "50", "--folder", tmp_path)
    assert forked(*words, "--steps", "100").status == 0
    again = forked(*words, "--steps", "1000")
    assert again.status == 0, again.errors
    assert again.value("resume_step", run="plain", rank=0) == 100
    assert again.value("step", run="plain", rank=0) == 1000
