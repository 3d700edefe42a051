"""A wrong name is logged once, with the right one, and counted; the call returns."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import tachograph
from tachograph.catalog import rank
from tachograph.catalog.rank import OPERATIONS, PHASES, STEP_TAGS, TIERS
from tachograph.client.core.misuse import WORDS
from tachograph.client.recorder import Recorder
from tachograph.findings import limits
from tachograph.findings.limits import LIMIT_NAMES
from tachograph.wire import MAX_NOTICE_BYTES, MAX_NOTICES

SAYS = "tachograph: "
"""What a line of ours in a log begins with."""


class Undecided:
    """Neither true nor false, as a tensor of two elements is."""

    def __bool__(self) -> bool:
        raise RuntimeError


@pytest.mark.parametrize(
    ("misuse", "wrong", "right"),
    [
        (lambda recorder: recorder.phase("fwd"), "'fwd'", "forward"),
        (lambda recorder: recorder.step(tag="garbage"), "'garbage'", "gc"),
        (lambda recorder: recorder.step(accumulate=True), "accumulate", "accumulating"),
        (lambda recorder: recorder.step(1, 2), "too many", "number"),
        (lambda recorder: recorder.tag("warmup"), "'warmup'", "warm-up"),
        (lambda recorder: recorder.collective("allreduce"), "'allreduce'", "all_reduce"),
        (lambda recorder: recorder.threshold("hang", 5), "'hang'", "hang_seconds"),
        (lambda recorder: recorder.watch(optimiser=1), "optimiser", "optimizer"),
        (lambda recorder: recorder.step().log(2.5), "by name", "loss=loss"),
        (lambda recorder: recorder.step(accumulating=Undecided()), "accumulating", ""),
        (lambda recorder: Recorder(socket="/nonexistent", rnk=3).close(), "rnk", "rank"),
        (lambda recorder: Recorder("run", socket="/nonexistent").close(), "too many", "run"),
    ],
)
def test_misuse_is_said_once(
    misuse: Callable[[Recorder], Any], wrong: str, right: str, *, record: Callable[..., Recorder],
    caplog: pytest.LogCaptureFixture, until: Callable[..., Any],
) -> None:  # fmt: skip
    """The log has the right name beside the wrong one, in one line, however often it is used; each use is counted."""
    recorder = record()
    before = recorder._calls.state.dropped.count
    misuse(recorder)
    misuse(recorder)

    def lines() -> list[str]:
        texts = (line.getMessage() for line in caplog.records)
        return [text for text in texts if wrong in text and not text.startswith(f"{SAYS}not recorded as meant:")]

    until(lines)
    recorder.close()
    (line,) = lines()
    assert right in line
    if "Recorder(" not in inspect.getsource(misuse):
        assert recorder._calls.state.dropped.count >= before + 2


def test_a_wrong_name_of_a_scalar_is_said_once(
    record: Callable[..., Recorder], caplog: pytest.LogCaptureFixture, until: Callable[..., Any]
) -> None:
    """By the sender thread, which reads what was logged."""
    recorder = record()
    for _ in range(3):
        recorder.step().log(los=1.0, loss="2")
    until(lambda: len(caplog.records) >= 2)
    texts = sorted(line.getMessage() for line in caplog.records)
    assert texts == [
        f"{SAYS}step.log(los=…) is dropped: did you mean loss?",
        f"{SAYS}step.log(loss=…) is dropped: the value is not a number",
    ]  # fmt: skip


def test_the_log_does_not_grow_with_made_up_words(record: Callable[..., Recorder], caplog: Any) -> None:
    """Of endlessly many new names the first few of a kind are logged; all are counted."""
    recorder = record()
    for number in range(1000):
        recorder.phase(f"phase {number}")
        recorder.step().log(**{f"name\n{number}": 1.0})
    recorder.close()
    texts = [line.getMessage() for line in caplog.records]
    assert len(texts) == 2 * WORDS + 1
    assert all(text.isprintable() and len(text) < 1000 for text in texts)
    assert recorder._calls.state.misuse.metrics() == {"misuse_total": {"unknown_phase": 1000, "unknown_name": 1000}}


MISUSED = (
    (lambda recorder: recorder.step().log(los=1.0), "unknown_name", "step.log(los=…) is dropped: did you mean loss?"),
    (
        lambda recorder: recorder.step().log(expert_load=1.0),
        "unknown_name",
        'declare it: Recorder(metrics={"expert_load": "…"})',
    ),
    (lambda recorder: recorder.step().log(loss="abc"), "wrong_type", "step.log(loss=…) is dropped: the value is not"),
    (lambda recorder: recorder.phase("forwrd"), "unknown_phase", "phase('forwrd') is dropped: did you mean forward?"),
    (lambda recorder: recorder.threshold("hang_second", 30), "unknown_threshold", "did you mean hang_seconds?"),
    (
        lambda recorder: recorder.threshold("straggler_ratio", 20),
        "wrong_type",
        "20 is not a share (0.2 for 20 %) from 0.06 to 0.95",
    ),
    (
        lambda recorder: recorder.threshold("hang_seconds", 5),
        "wrong_type",
        "5 is not a number of seconds from 10 to 86400",
    ),
    (lambda recorder: list(recorder.data(range(300))), "no_steps", "300 batches of recorder.data(…) and no step"),
)


@pytest.mark.parametrize(("misuse", "kind", "text"), MISUSED)
def test_a_misuse_travels_to_the_exporter(
    misuse: Callable[[Recorder], Any], kind: str, text: str, exporter: Any, record: Callable[..., Recorder]
) -> None:
    """As a count by kind and as one bounded line; a frame before it has neither."""
    recorder = record()
    first = exporter.wait_for()
    assert "notices" not in first
    assert "misuse_total" not in first["metrics"]
    misuse(recorder)
    frame = exporter.wait_for(where=lambda frame: "notices" in frame)
    assert frame["metrics"]["misuse_total"] == {kind: 1}
    (notice,) = frame["notices"]
    assert text in notice
    assert len(notice.encode()) <= MAX_NOTICE_BYTES


def test_a_misspelt_tier_travels_too(exporter: Any, record: Callable[..., Recorder]) -> None:
    """Misuse in the constructor's arguments is known before the first frame."""
    record(tier="herro", rank="first")
    frame = exporter.wait_for()
    assert frame["metrics"]["misuse_total"] == {"unknown_tier": 1, "wrong_type": 1}
    assert frame["notices"] == [
        "rank cannot be 'first': the value is ignored", "tier='herro' is dropped: did you mean hero?",
    ]  # fmt: skip


def test_notices_are_of_every_kind_and_few(exporter: Any, record: Callable[..., Recorder]) -> None:
    """Ten wrong names do not hide a wrong phase."""
    recorder = record()
    recorder.step().log(**{f"wrong_{letter}": 1.0 for letter in "abcdefghij"})
    recorder.phase("forwrd")
    frame = exporter.wait_for(where=lambda frame: len(frame.get("notices", ())) > 4)
    assert len(frame["notices"]) <= MAX_NOTICES
    assert any("forward" in notice for notice in frame["notices"])
    assert frame["metrics"]["misuse_total"] == {"unknown_name": 10, "unknown_phase": 1}


def test_the_end_says_what_was_not_recorded(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """In one line, with how often, also where no exporter ever listened; nothing where nothing was wrong."""
    recorder = Recorder(socket=tmp_path / "none.sock")
    for _ in range(9003):
        recorder.step().log(los=1.0)
    state = recorder._calls.state
    recorder.close()

    def at_the_end() -> list[str]:
        return [text for line in caplog.records if (text := line.getMessage()).startswith(f"{SAYS}not recorded")]

    (line,) = at_the_end()
    read = state.misuse.metrics()["misuse_total"]["unknown_name"]
    assert line == f"{SAYS}not recorded as meant: {read:,} × step.log(los=…) is dropped: did you mean loss?"
    caplog.clear()
    Recorder(socket=tmp_path / "none.sock").close()
    assert not at_the_end()


def test_micro_steps_and_steps_are_steps(exporter: Any, record: Callable[..., Recorder]) -> None:
    """A loop that accumulates over 300 batches still marks its steps."""
    recorder = record()
    for _ in recorder.data(range(400)):
        with recorder.step(accumulating=True):
            pass
    frame = exporter.wait_for(where=lambda frame: frame["metrics"]["batches_total"] == 400)
    assert "notices" not in frame


def test_words_of_the_signatures_are_those_of_the_catalog() -> None:
    """A type checker finds what the client would drop."""
    signatures = {
        (Recorder.phase, "name"): PHASES, (Recorder.tag, "name"): STEP_TAGS, (Recorder.step, "tag"): STEP_TAGS,
        (Recorder.threshold, "name"): LIMIT_NAMES, (Recorder.__init__, "tier"): TIERS,
        (Recorder.collective, "operation"): OPERATIONS,
    }  # fmt: skip
    for (call, argument), words in signatures.items():
        annotation = inspect.unwrap(call).__annotations__[argument].partition(" | ")[0]
        assert get_args(getattr(rank, annotation, None) or getattr(limits, annotation)) == words


def test_dir_shows_the_api() -> None:
    """A person at a prompt sees what there is, and nothing else."""
    assert set(dir(tachograph)) == {"Recorder", "__version__", "resume_from"}


def test_advice_that_cannot_be_loaded_costs_no_frame(
    exporter: Any, record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no module can be loaded, for want of descriptors, all right words are listed; and the nearest later."""
    monkeypatch.setitem(sys.modules, "difflib", None)
    recorder = record()
    recorder.phase("forwrd")
    frame = exporter.wait_for(where=lambda frame: "notices" in frame)
    assert "expected one of init, data" in frame["notices"][0]
    monkeypatch.delitem(sys.modules, "difflib")
    exporter.wait_for(where=lambda frame: any("did you mean forward?" in text for text in frame.get("notices", ())))


def test_difflib_is_loaded_by_a_misuse_alone(tmp_path: Path) -> None:
    """A script that is right pays nothing for the advice."""
    program = (
        "import sys; from tachograph import Recorder; recorder = Recorder(socket=sys.argv[1]); "
        "recorder.step().log(loss=1.0); recorder.phase('forward'); recorder.close(); print('difflib' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "none.sock")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
