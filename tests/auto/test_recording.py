"""With our folder on PYTHONPATH every training is recorded as `tachograph run` would, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tachograph.auto.command import FOLDER, write_copy
from tachograph_lab.processes import free_port
from tests.client.conftest import Exporter, wait_until

HERE = Path(__file__).parent
ARMED, KINDS = HERE / "armed.py", HERE / "kinds_of_process.py"
LOOP = HERE.parent / "attach/loop_script.py"
STEPS, START = 12, 0.3

pytestmark = pytest.mark.torch


def test_a_plain_loop_is_seen_as_by_tachograph_run(forked: Any) -> None:
    """The same counts, from the first batch on; the same output, weights included, and nothing on standard error."""
    alone = forked(LOOP, "plain")
    under = forked("-m", "tachograph", "run", "--quiet", "--run", "under", LOOP, "plain")
    done = forked(ARMED, LOOP, "plain", TACHOGRAPH_RUN="auto")
    assert (done.status, done.out, done.errors) == (alone.status, alone.out, alone.errors) == (0, done.out, "")
    for name in ("steps_total", "batches_total"):
        assert done.value(name, run="auto", rank=0) == under.value(name, run="under", rank=0) is not None
    for phase in ("data", "forward", "backward", "optimizer", "eval"):
        assert (done.value("phase_seconds_total", run="auto", rank=0, phase=phase) or 0) > 0


def test_what_updates_no_parameter_is_left_alone(forked: Any) -> None:
    """Inference, a loader's workers and a gradient without an update: no thread, no socket, no hook, no record."""
    alone = forked(KINDS, "inference")
    done = forked(ARMED, KINDS, "inference", TACHOGRAPH_RUN="inference")
    assert (done.status, done.out, done.errors) == (0, alone.out, "")
    assert done.out == "[] [] True\n"
    assert not done.having("steps_total", run="inference")


def test_a_script_with_its_own_recorder_has_one_record(forked: Any) -> None:
    """Its own, made after PyTorch was imported."""
    done = forked(ARMED, LOOP, "own", TACHOGRAPH_RUN="auto-own")
    assert done.status == 0, done.errors
    assert done.value("steps_total", run="own", rank=0) == 60
    assert not done.having("steps_total", run="auto-own")


def test_under_tachograph_run_there_is_one_record(forked: Any) -> None:
    """That of `tachograph run`, which says what it has recorded as ever."""
    done = forked(ARMED, "-m", "tachograph", "run", "--run", "by-run", KINDS, "trains", TACHOGRAPH_RUN="by-auto")
    assert done.status == 0, done.errors
    assert done.errors.startswith(f"tachograph run: recorded {STEPS} steps")
    assert done.value("steps_total", run="by-run", rank=0) == STEPS
    assert not done.having("steps_total", run="by-auto")


def test_a_forked_child_that_trains_is_recorded(forked: Any) -> None:
    """Its parent only draws batches; the child's last step is counted though it leaves by os._exit."""
    done = forked(ARMED, KINDS, "forks", TACHOGRAPH_RUN="child")
    assert done.status == 0, done.errors
    assert done.value("steps_total", run="child", rank=0) == STEPS
    assert len(done.having("steps_total", run="child")) == 1


def test_the_thread_that_trains_is_recorded(forked: Any) -> None:
    """As in a worker of Ray's, though another one has drawn batches before; once it is over, the next one's."""
    done = forked(ARMED, KINDS, "thread", TACHOGRAPH_RUN="thread")
    assert done.status == 0, done.errors
    assert done.value("steps_total", run="thread", rank=0) == STEPS + 1


def test_a_training_that_moves_among_threads_is_one(forked: Any) -> None:
    """Whole steps, each by whichever thread of a pool is free: all of them count, and its threads all live on."""
    done = forked(ARMED, KINDS, "pool", TACHOGRAPH_RUN="pool")
    assert (done.status, done.errors) == (0, "")
    assert done.value("steps_total", run="pool", rank=0) == STEPS


def test_a_training_between_threads_is_no_run_that_stands_still(forked: Any) -> None:
    """Backward in one thread and the update in another, as asyncio.to_thread has it: its steps cannot be told."""
    done = forked(ARMED, KINDS, "between threads", TACHOGRAPH_RUN="between")
    assert (done.status, done.errors) == (0, "")
    assert not done.having("steps_total", run="between")


def test_trainings_without_a_name_are_runs_of_their_own(forked: Any) -> None:
    """Two that a user starts side by side, each of one process: neither is refused as a rank that is there already."""
    done = forked(ARMED, KINDS, "side by side", LOGNAME="bob")
    assert done.status == 0, done.errors
    found = {dict(labels)["run"]: value for labels, value in done.having("steps_total", rank=0).items()}
    mine = {run: value for run, value in found.items() if "local-bob" in run}
    assert len(mine) == 2
    assert sorted(mine.values()) == [STEPS, STEPS + 1]


@pytest.mark.slow
def test_spawned_ranks_are_recorded(forked: Any) -> None:
    """Each with the rank that only `init_process_group` knows; the process that started them is none."""
    done = forked(KINDS, "spawns", free_port(), TACHOGRAPH_RUN="spawned", PYTHONPATH=os.fspath(FOLDER))
    assert done.status == 0, done.errors
    for rank in range(2):
        assert done.value("steps_total", run="spawned", rank=rank) == STEPS + rank
    assert len(done.having("steps_total", run="spawned")) == 2


@pytest.mark.slow  # three processes import PyTorch; quicker are spawned ranks, and torchrun in tests/attach/test_run.py
def test_the_ranks_of_torchrun_are_recorded(forked: Any) -> None:
    """Both, as in a job that nobody has edited, with their collectives; torchrun itself is none of them."""
    done = forked(LOOP, "ddp", ranks=2, TACHOGRAPH_RUN="ranks-auto", PYTHONPATH=os.fspath(FOLDER))
    assert done.status == 0, done.errors
    assert "tachograph" not in done.errors
    for rank in range(2):
        assert done.value("steps_total", run="ranks-auto", rank=rank) == 60
        assert done.value("collectives_total", run="ranks-auto", rank=rank, op="all_reduce") == 120
    assert len(done.having("steps_total", run="ranks-auto")) == 2


def test_a_copy_needs_no_installation(scraped: Any, tmp_path: Path) -> None:
    """Neither ours, nor any other package but PyTorch's; what the program calls `tachograph` stays the program's."""
    write_copy(tmp_path / "auto")
    theirs = tmp_path / "theirs/tachograph/__init__.py"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("__version__ = 'theirs'\n")
    script = tmp_path / "train.py"
    script.write_text(f"{KINDS.read_text()}\nimport tachograph\nprint(tachograph.__version__, tachograph.__file__)\n")
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    path = (tmp_path / "auto", tmp_path / "theirs", Path(torch.origin).parents[1])
    command = [sys._base_executable, script, "trains"]  # type: ignore[attr-defined]
    environment = scraped.environment(TACHOGRAPH_RUN="copy", PYTHONPATH=os.pathsep.join(map(os.fspath, path)))
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
    done = scraped._done(process)
    said_by_program = (tmp_path / "said").read_text().splitlines()
    assert (done.status, said_by_program[1:]) == (0, [f"theirs {theirs}"]), said_by_program
    assert said_by_program[0].startswith("weights ")
    assert done.value("steps_total", run="copy", rank=0) == STEPS
    init = done.value("phase_seconds_total", run="copy", rank=0, phase="init")
    assert init is not None
    assert init >= START  # before the first batch


def test_what_cannot_be_seen_is_said_to_the_exporter_alone(torch_programs: Any, tmp_path: Path) -> None:
    """Here PyTorch has no function that clips: the rest is recorded, and the program's log knows nothing of it."""
    exporter = Exporter(tmp_path / "rank.sock")
    exporter.start()
    code = (
        f"import runpy, torch; del torch.nn.utils.clip_grad_norm_; runpy.run_path({str(ARMED)!r}, run_name='__main__')"
    )
    program = torch_programs(code, KINDS, "trains", TACHOGRAPH_SOCKET=str(exporter.path))
    said = program.end()
    assert said.startswith("weights ")
    assert said.count("\n") == 1
    (talk,) = exporter.talks
    wait_until(lambda: talk.frames[-1]["type"] == "bye")
    state = talk.frames[-2]
    assert state["metrics"]["steps_total"] == STEPS
    (notice,) = state["notices"]
    assert notice.startswith("nothing is seen of clipping: AttributeError(")
    exporter.stop()
