"""The public recorder: switched off, mistreated, and what importing it costs."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.catalog.rank import LOST_CAUSES, USUAL_PHASES
from tachograph.client.active import ActiveCalls
from tachograph.client.no_op import NoOpCalls
from tachograph.client.recorder import Recorder

Make = Callable[..., Recorder]


def use_everything(recorder: Recorder) -> int:
    """Call the whole API once and return the batches seen."""
    seen = 0
    recorder.watch(object(), object(), scheduler=object(), scaler=object(), layers=2, checksum_every=1)
    recorder.add_source(SimpleNamespace(metrics=dict))
    recorder.resumed(0, seconds=1.0)
    for _ in recorder.data([1, 2, 3]):
        with recorder.step(accumulating=True), recorder.count_flops():
            pass
        with recorder.step(tag="compile") as step:
            with recorder.phase("forward"):
                seen += 1
            with recorder.collective("all_reduce", bytes=8):
                pass
            recorder.tag("restart")
            step.log(loss=1.0)
    recorder.invariant("global_batch", 1024, step=3)
    recorder.threshold("hang_seconds", 60)
    recorder.checkpoint_saved(step=3, bytes=1, path="/")
    recorder.checkpoint_failed()
    return seen


def test_the_silent_recorder_takes_every_call() -> None:
    """Whatever the public API grows, a run that is switched off does not break over it."""
    calls = {name: member for name, member in vars(NoOpCalls).items() if not name.startswith("_")}
    for name, member in calls.items():
        active = vars(ActiveCalls)[name]
        if inspect.isfunction(member):
            assert list(inspect.signature(active).parameters) == list(inspect.signature(member).parameters), name
    answered_by_the_recorder_itself = {"step", "phase", "resume"}
    assert {name for name in vars(Recorder) if not name.startswith("_")} - answered_by_the_recorder_itself <= set(calls)


@pytest.mark.parametrize("switch", ["argument", "environment"])
def test_switched_off_it_is_nothing(switch: str, exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread, no socket, no wrapper around the loader; every call works."""
    if switch == "environment":
        monkeypatch.setenv("TACHOGRAPH_DISABLED", "1")
    threads = threading.active_count()
    recorder = Recorder(socket=exporter.path, run="off", enabled=switch != "argument")
    assert not recorder._calls.records
    assert threading.active_count() == threads
    loader = [1]
    assert recorder.data(loader) is loader  # type: ignore[comparison-overlap]
    assert use_everything(recorder) == 3
    assert recorder.last_step is None
    step = recorder.step()
    assert (step.number, step.next, step.completed, step.ended, step.under_way) == (0, 0, 0, None, False)
    recorder.close()
    assert exporter.talks == []


@pytest.mark.parametrize("value", ["", "0"])
def test_not_switched_off(value: str, record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable, or 0, disables nothing."""
    monkeypatch.setenv("TACHOGRAPH_DISABLED", value)
    assert record()._calls.records


def test_no_threads_left(monkeypatch: pytest.MonkeyPatch, exporter: Any) -> None:
    """A process that may have no more threads or files trains on, unrecorded."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    recorder = Recorder(socket=exporter.path)
    monkeypatch.undo()
    assert use_everything(recorder) == 3
    assert not recorder._calls.records


WRONG: tuple[tuple[str, Callable[[Recorder], Any]], ...] = (
    ("unknown name", lambda recorder: recorder.step().log(perplexity=1.0)),
    ("a measured name", lambda recorder: recorder.step().log(loss_zscore=1.0)),
    ("text", lambda recorder: recorder.step().log(loss="x")),
    ("nothing", lambda recorder: recorder.step().log(loss=None)),
    ("phase", lambda recorder: recorder.phase("nope").__enter__()),
    ("phase of no type", lambda recorder: recorder.phase([]).__enter__()),  # type: ignore[arg-type]
    ("operation", lambda recorder: recorder.collective("gossip").__enter__()),
    ("operation of no type", lambda recorder: recorder.collective({}).__enter__()),  # type: ignore[arg-type]
    ("payload", lambda recorder: recorder.collective("barrier", bytes=-1).__enter__()),
    ("step", lambda recorder: recorder.step(-1)),
    ("step of no type", lambda recorder: recorder.step("12a")),  # type: ignore[arg-type]
    ("tag of a step", lambda recorder: recorder.step(tag="lunch")),
    ("tag of no type", lambda recorder: recorder.step(tag=[])),  # type: ignore[arg-type]
    ("tag outside a step", lambda recorder: recorder.tag("eval")),
    ("invariant", lambda recorder: recorder.invariant("batch", float("nan"))),
    ("name of an invariant", lambda recorder: recorder.invariant("n" * 65, 1)),
    ("invariant of no type", lambda recorder: recorder.invariant("batch", object())),  # type: ignore[arg-type]
    ("invariant's name of no type", lambda recorder: recorder.invariant({}, 1)),  # type: ignore[arg-type]
    ("threshold", lambda recorder: recorder.threshold("hang_seconds", -5)),
    ("name of a threshold", lambda recorder: recorder.threshold("patience", 60)),
    ("threshold's name of no type", lambda recorder: recorder.threshold([], 60)),  # type: ignore[arg-type]
    ("resumed", lambda recorder: recorder.resumed(-1)),
    ("seconds", lambda recorder: recorder.resumed(1, seconds="long")),  # type: ignore[arg-type]
    ("source", lambda recorder: recorder.add_source(5)),  # type: ignore[arg-type]
    ("model and optimizer", lambda recorder: recorder.watch(5, 5, layers=3, checksum_every=1)),
    ("checkpoint", lambda recorder: recorder.checkpoint_saved(step=1.5)),  # type: ignore[arg-type]
    ("path", lambda recorder: recorder.checkpoint_saved(step=1, path=object())),  # type: ignore[arg-type]
    ("bytes", lambda recorder: recorder.checkpoint_saved(step=1, bytes=10**300)),
    ("unhashable model", lambda recorder: recorder.watch([])),
    ("optimizer", lambda recorder: recorder.watch(None, 5)),
)


@pytest.mark.parametrize(("name", "call"), WRONG, ids=[name for name, _ in WRONG])
def test_wrong_calls_are_dropped_and_counted(name: str, call: Any, exporter: Any, record: Make) -> None:
    """A wrong name or type raises nothing and reaches the exporter as one drop."""
    recorder = record()
    call(recorder)
    exporter.wait_for(where=lambda frame: frame["dropped"] == 1)


def test_wrong_arguments_at_start_are_counted(exporter: Any, record: Make) -> None:
    """The constructor takes what is right and counts the rest."""
    record(
        run=5, rank="x", tokens_per_step=-1, precision="bf16\n\x00", peak_flops=float("nan"), flops_convention="guess",
        hardware_flops_per_token=[], flops_per_token=object(), tier="urgent",
        total_steps="many",
    )  # fmt: skip
    state = exporter.wait_for()
    assert state["dropped"] == 10
    assert exporter.wait_for("hello")["run"].startswith("local-")


def test_a_run_says_its_tier_and_its_limits(exporter: Any, record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument comes before the environment; limits are in the next frame, and absent where none is set."""
    monkeypatch.setenv("TACHOGRAPH_TIER", "dev")
    record()
    assert exporter.wait_for("hello")["facts"]["tier"] == "dev"
    assert "threshold" not in exporter.wait_for()["metrics"]
    recorder = record(run="hero", tier="hero")
    assert exporter.wait_for("hello", lambda frame: frame["run"] == "hero")["facts"]["tier"] == "hero"
    recorder.threshold("hang_seconds", 60)
    exporter.wait_for(where=lambda frame: frame["metrics"].get("threshold") == {"hang_seconds": 60})


def test_a_run_says_where_it_ends(exporter: Any, record: Make) -> None:
    """From the first frame on, before any step; a loop that learns better says so."""
    recorder = record(total_steps=1000)
    assert exporter.wait_for()["metrics"]["total_steps"] == 1000
    recorder.step().log(total_steps=1200)
    exporter.wait_for(where=lambda frame: frame["metrics"].get("total_steps") == 1200)


def test_exceptions_pass_through_untouched(record: Make) -> None:
    """Every context manager lets the user's exception out as it is, BaseExceptions too."""
    recorder = record()
    for error in (ValueError("mine"), KeyboardInterrupt(), SystemExit(3), StopIteration(), GeneratorExit()):
        for context in (
            recorder.step(), recorder.phase("forward"), recorder.phase("checkpoint"), recorder.phase("nope"),
            recorder.collective("barrier"), Recorder(enabled=False).step(),
        ):  # fmt: skip
            with pytest.raises(type(error)) as caught, context:
                raise error
            assert caught.value is error


def test_a_resume_gives_its_step(exporter: Any, record: Make) -> None:
    """An explicit number is taken, and the count goes on from there."""
    recorder = record()
    with recorder.step(1000):
        pass
    with recorder.step() as step:
        assert step.number == 1001
    state = exporter.next_state()
    assert (state["step"], state["metrics"]["steps_total"]) == (1002, 2)


def test_tags_and_micro_steps(exporter: Any, record: Make) -> None:
    """Through the front door: two optimizer steps of three micro-batches each, one of them tagged."""
    recorder = record(tokens_per_step=10)
    for number in range(3):
        for micro in range(3):
            with recorder.step(accumulating=micro < 2) as step:
                if number == 2 and micro == 1:
                    recorder.tag("eval")
                recorder.step().log(loss=1.0)
                assert step.number == number
    state = exporter.next_state()
    assert (state["step"], state["metrics"]["steps_total"], state["metrics"]["tokens_total"]) == (3, 3, 30)
    assert state["metrics"]["tagged_steps_total"] == {"warm-up": 1, "eval": 1}
    assert state["histograms"]["step_seconds"]["count"] == 1
    assert state["dropped"] == 0


def test_phases_left_in_the_wrong_order(exporter: Any, record: Make) -> None:
    """The step is counted, nothing is raised, and the clock is outside every phase after it."""
    recorder = record()
    for _ in range(3):
        with recorder.step():
            forward, backward = recorder.phase("forward"), recorder.phase("backward")
            forward.__enter__()
            backward.__enter__()
            forward.__exit__(None, None, None)
            backward.__exit__(None, None, None)
            backward.__exit__(None, None, None)
    state = exporter.next_state()
    assert (state["metrics"]["steps_total"], state["phase"], state["dropped"]) == (3, "other", 0)


def test_a_loop_without_steps_is_recorded(exporter: Any, record: Make) -> None:
    """Phases, logged values and batches arrive; no step is made up."""
    recorder = record()
    for _ in recorder.data([1, 2]):
        with recorder.phase("forward"):
            recorder.step().log(loss=2.0)
    state = exporter.next_state()
    metrics = state["metrics"]
    assert (metrics["steps_total"], metrics["loss"], metrics["batches_total"]) == (0, 2.0, 2)
    assert "progress_time" not in state


def test_goodput_excess_and_memory_are_there_from_the_start(exporter: Any, record: Make) -> None:
    """What every rank reports of itself needs no call."""
    record()
    metrics = exporter.wait_for()["metrics"]
    assert metrics["host_memory_bytes"] > 2**20
    assert metrics["phase_excess_seconds_total"] == dict.fromkeys(USUAL_PHASES, 0.0)
    assert set(metrics["lost_seconds_total"]) == set(LOST_CAUSES)
    assert metrics["productive_seconds_total"] == 0


def test_ordinary_steps_are_in_the_frame(exporter: Any, record: Make) -> None:
    """What the node needs to judge the rank needs no call either: totals from the second step on, and no window."""
    recorder = record()
    assert "ordinary_steps_total" not in exporter.next_state()["metrics"]
    for _ in range(6):
        with recorder.step(), recorder.phase("forward"), recorder.collective("all_reduce"):
            pass
    metrics = exporter.next_state()["metrics"]
    assert metrics["ordinary_steps_total"] == 5
    assert metrics["ordinary_step_seconds_total"] > metrics["ordinary_wait_seconds_total"] > 0
    assert metrics["ordinary_phase_seconds_total"].keys() <= {"forward", "other"}
    assert not [key for key in metrics if key.startswith("recent")]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the training thread."""
    moment = [0.0]
    for module in ("core.phases", "core.steps", "torch.collectives"):
        monkeypatch.setattr(f"tachograph.client.{module}.perf_counter", lambda: moment[0])
    return moment


def test_checkpoints_and_resumes(exporter: Any, record: Make, now: list[float]) -> None:
    """Each is an event and a number; how long a save took is what its phase took."""
    recorder = record()
    recorder.resumed(100, seconds=2.5)
    with recorder.step(100), recorder.phase("checkpoint"):
        now[0] += 2
        recorder.checkpoint_saved(101, bytes=10)
    with pytest.raises(OSError, match="full"), recorder.phase("checkpoint"):
        raise OSError("full")
    recorder.checkpoint_failed()
    state = exporter.next_state()
    metrics = state["metrics"]
    assert (metrics["resume_step"], metrics["checkpoint_load_duration_seconds"]) == (100, 2.5)
    assert metrics["checkpoint_duration_seconds"] == 2
    assert metrics["checkpoint_failures_total"] == 2
    assert metrics["tagged_steps_total"] == {"warm-up": 1}
    assert [event["kind"] for event in state["events"]] == ["resumed", "checkpoint_saved", "checkpoint_failed"]


@pytest.mark.parametrize("numbered", [True, False])
def test_a_resume_that_waits_before_its_first_step_repeats_nothing(
    exporter: Any, record: Make, now: list[float], numbered: bool
) -> None:
    """A loader that skips what an earlier process trained on is waited for in phase data, then every step is new.

    Steps without a number count on from what was resumed.
    """
    exporter.answer = {"ok": True, "last_step": 40, "ended": time.time()}
    recorder = record()
    if not numbered:
        recorder.resumed(40)
    with recorder.phase("data"):
        for _ in range(4):
            now[0] += 2
            recorder.checkpoint_failed()  # has a frame sent now
            exporter.next_state()
    for step in range(40, 80):
        with recorder.step(step if numbered else None):
            now[0] += 0.1
    recorder.checkpoint_failed()
    state = exporter.next_state()
    assert state["step"] == 80
    lost = {cause: seconds for cause, seconds in state["metrics"]["lost_seconds_total"].items() if seconds > 0.01}
    assert lost.pop("restart", 0.0) < 60
    assert lost == {"data": pytest.approx(8.0)}
    assert state["metrics"]["productive_seconds_total"] == pytest.approx(4.0)


def test_a_forked_child_leaves_the_parents_sinks_alone(exporter: Any, start: Callable[..., Any]) -> None:
    """A child that ends in the usual way closes nothing of its parent's."""
    process = start(
        """
        class Sink:
            def write(self, time, step, metrics): pass
            def close(self): say(f"closed {os.getpid() == parent}")
        parent = os.getpid()
        recorder = Recorder(run="test", rank=1, sinks=[Sink()])
        if os.fork() == 0:
            recorder.step(); recorder.close()
            sys.exit(0)
        os.wait()
        say("waited")
        """
    )
    process.hear("waited")
    process.hear("closed True")
    assert process.end()[0] == 0


def test_marked_collectives(exporter: Any, record: Make, now: list[float]) -> None:
    """All of a marked collective is exposed wait and phase collective; a failed one is counted and entered."""
    recorder = record()
    with recorder.step(), recorder.phase("backward"):
        with recorder.collective("all_reduce", bytes=1024):
            now[0] += 2
        with pytest.raises(RuntimeError), recorder.collective("barrier"):
            raise RuntimeError("timeout")
    metrics = exporter.next_state()["metrics"]
    assert metrics["collectives_total"] == {"all_reduce": 1, "barrier": 1}
    assert metrics["collective_bytes_total"] == {"all_reduce": 1024, "barrier": 0}
    assert metrics["collective_failures_total"] == {"all_reduce": 0, "barrier": 1}
    assert metrics["collective_wait_seconds_total"]["all_reduce"] == metrics["phase_seconds_total"]["collective"] == 2
    assert metrics["phase_seconds_total"]["backward"] == 0


def in_fresh_python(folder: Path, *lines: str) -> Any:
    """Return what a program prints, as JSON, run from compiled bytecode kept in `folder`."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    return json.loads(subprocess.check_output([sys.executable, "-c", "\n".join(lines)], env=environment))


CHEAP = {
    "array", "atexit", "bisect", "collections", "contextlib", "copyreg", "enum", "errno", "functools", "gc",
    "itertools",
    "json", "keyword", "math", "operator", "re", "reprlib", "select", "selectors", "signal", "socket", "threading",
    "types", "typing", "warnings", "weakref",
}  # fmt: skip
"""What the client imports of the standard library: 20 ms, half of it typing and re. `bench/client.py` measures it."""


def test_importing_the_recorder_loads_little(tmp_path: Path) -> None:
    """Its import is a cost of every script: no module beyond the list, for logging alone would be a third more."""
    loaded = in_fresh_python(
        tmp_path,
        "import json, sys; before = set(sys.modules)",
        "import tachograph.client.recorder",
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))",
    )
    assert {name for name in loaded if not name.startswith("_")} - {"tachograph"} <= CHEAP


def test_importing_the_recorder_compiles_no_pattern(tmp_path: Path) -> None:
    """Each costs up to a millisecond: those that training does not need are made elsewhere, or when they are used."""
    made = in_fresh_python(
        tmp_path,
        f"import json, re, {', '.join(sorted(CHEAP))}",
        "made, compile_ = [], re.compile",
        "re.compile = lambda pattern, *flags: made.append(pattern) or compile_(pattern, *flags)",
        "import tachograph.client.recorder",
        "print(json.dumps(made))",
    )
    assert made == []


def test_importing_the_recorder_takes_little_memory(tmp_path: Path) -> None:
    """At most four fifths of the Python memory that asyncio takes, which grows from version to version as ours does.

    3.0 of 4.4 MB in Python 3.11, what each imports of the standard library included.
    """

    def kept(module: str) -> Any:
        in_fresh_python(tmp_path, f"import {module}", "print(0)")  # compiles it
        return in_fresh_python(
            tmp_path,
            "import gc, tracemalloc; tracemalloc.start()",
            f"import {module}",
            "gc.collect(); print(tracemalloc.get_traced_memory()[0])",
        )

    assert kept("tachograph.client.recorder") < 0.8 * kept("asyncio")


def test_importing_the_recorder_brings_nothing_and_does_nothing(tmp_path: Path) -> None:
    """Nothing outside the standard library, no log set-up, no thread, no hook."""
    modules, threads, hooked = in_fresh_python(
        tmp_path,
        "import sys; before = set(sys.modules)",
        "import tachograph.client.recorder",
        "import json, signal, threading",
        "hooked = sys.excepthook is not sys.__excepthook__ or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL",
        "print(json.dumps([sorted(set(sys.modules) - before), threading.active_count(), hooked]))",
    )
    outside = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"tachograph"}
    assert (outside, threads, hooked) == (set(), 1, False)
    assert not {"tachograph.node", "tachograph.client.core.torch_types", "logging"} & set(modules)
