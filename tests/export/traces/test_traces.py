"""Traces: which spans are recorded, and that the files open in the programs that they are for."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tachograph.client.hello.identity import Identity
from tachograph.export.traces import Traces
from tachograph.export.traces.chrome import ChromeTrace
from tachograph.export.traces.spans import RING_LIMIT, Span

Train = Callable[..., None]
WHO = Identity("llama", 5, 5, 8, 1, 0)


def read(path: Path) -> list[dict[str, Any]]:
    """Read a trace as its viewers do: the array may lack its end."""
    events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8").rstrip().rstrip(",") + "]")
    return events


def steps(path: Path) -> list[int]:
    """Return the numbers of the traced steps."""
    return [event["args"]["step"] for event in read(path) if event["name"] == "step"]


def test_one_step_in_so_many_is_traced(tmp_path: Path, train: Train) -> None:
    """Every 500th means every 500th, and no other."""
    path = tmp_path / "rank5.json"
    traces = Traces(every=500, chrome=path)
    traces.start(WHO)
    train(traces, range(1, 1600))
    traces.close()
    assert steps(path) == [500, 1000, 1500]


def test_a_step_shows_its_phases_in_their_places(tmp_path: Path, train: Train) -> None:
    """Each phase lies inside its step, nested where it was nested, at the time of day when it happened."""
    path = tmp_path / "rank5.json"
    traces = Traces(every=1, chrome=path)
    traces.start(WHO)
    before = time.time() * 1e6
    train(traces, range(1, 3))
    traces.close()
    name, *events = read(path)
    assert name["args"]["name"] == "llama rank 5 attempt 1"
    first = [event for event in events if event["args"]["step"] == 1]
    step, forward, collective, backward = first
    assert [event["name"] for event in first] == ["step", "forward", "collective", "backward"]
    for event in first:
        assert event["ph"] == "X"
        assert event["pid"] == 5
        assert before - 1000 <= event["ts"] <= time.time() * 1e6
        assert step["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 0.2
    assert forward["ts"] <= collective["ts"]
    assert collective["ts"] + collective["dur"] <= forward["ts"] + forward["dur"] + 0.2
    assert backward["ts"] >= forward["ts"] + forward["dur"] - 0.2
    assert events[4]["args"] == {"step": 2, "collective_wait_seconds": 0.25}


def test_a_touch_traces_the_next_steps(tmp_path: Path, train: Train) -> None:
    """Whoever gets the page touches a file; five steps are traced, then none until the next touch."""
    path, trigger = tmp_path / "rank5.json", tmp_path / "trace-now"
    traces = Traces(chrome=path, trigger=trigger)
    traces.start(WHO)
    train(traces, range(10))
    assert steps(path) == []
    trigger.touch()
    train(traces, range(10, 30))
    assert steps(path) == [10, 11, 12, 13, 14]
    os.utime(trigger, ns=(1, 1))
    train(traces, range(30, 33))
    traces.close()
    assert steps(path)[5:] == [30, 31, 32]


def test_a_phase_that_fails_says_so_and_the_exception_goes_on(tmp_path: Path, train: Train) -> None:
    """Tracing swallows nothing of the training code's."""
    path = tmp_path / "rank5.json"
    traces = Traces(every=1, chrome=path)
    traces.start(WHO)
    with pytest.raises(ZeroDivisionError), traces.phase(nullcontext(), "data"):
        1 / 0  # noqa: B018
    train(traces, range(1, 2))
    traces.close()
    data = next(event for event in read(path) if event["name"] == "data")
    assert data["args"] == {"step": 1, "failed": True}


def test_steps_that_are_not_wanted_cost_no_memory(train: Train) -> None:
    """The ring holds the last few thousand spans, even where no step ever completes."""
    traces = Traces(every=1000)
    phase = traces.phase(nullcontext(), "forward")
    for _ in range(2 * RING_LIMIT):
        with phase:
            pass
    assert len(traces._ring) == RING_LIMIT
    train(traces, range(1, 2))
    assert len(traces._ring) == 0


def test_a_file_that_cannot_be_written_costs_the_traces_alone(tmp_path: Path, train: Train, caplog: Any) -> None:
    """Logged once; training continues."""
    traces = Traces(every=1, chrome=tmp_path / "no" / "such" / "folder.json")
    with caplog.at_level(logging.WARNING):
        traces.start(WHO)
        train(traces, range(1, 100))
    traces.close()
    assert len(caplog.records) == 1
    assert "steps are not traced" in caplog.text


def test_a_full_disk_ends_the_traces_and_is_told_once(train: Train, caplog: Any) -> None:
    """/dev/full takes no byte: one line in the log, not one a step."""
    traces = Traces(every=1, chrome="/dev/full")
    with caplog.at_level(logging.WARNING):
        traces.start(WHO)
        train(traces, range(1, 100))
    traces.close()
    assert len(caplog.records) == 1


def test_a_file_does_not_grow_without_end(tmp_path: Path) -> None:
    """Beyond its limit a new file is started; the last one is kept, and both can be opened."""
    path = tmp_path / "rank5.json"
    trace = ChromeTrace(path, WHO, max_bytes=2000)
    for step in range(100):
        trace.write(Span("step", 0.0, 1.0, failed=False), [], {"step": step}, 1e9)
    trace.close()
    assert path.stat().st_size < 2500
    assert steps(path)[-1] == 99
    assert steps(Path(f"{path}.1"))[-1] == steps(path)[0] - 1


@pytest.mark.parametrize("wrong", [{"every": -1}, {"burst": 0}])
def test_numbers_that_cannot_be_are_told_at_start(wrong: dict[str, int]) -> None:
    """A slip in the configuration is not found out after a week."""
    with pytest.raises(ValueError, match="expected"):
        Traces(**wrong)  # type: ignore[arg-type]
