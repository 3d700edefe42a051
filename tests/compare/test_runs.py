"""`tachograph compare` with runs in a real Prometheus: two of them, one around a moment, and fixes of an alert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tachograph.compare.command import main
from tachograph_lab.processes import free_port
from tests.compare.conftest import HOUR, RANKS, Recorded
from tests.schemas import conforms

pytestmark = pytest.mark.e2e


def compared(recorded: Recorded, capsys: Any, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    status = main([*map(str, arguments), "--json", "--prometheus", recorded.url])
    shown = capsys.readouterr()
    assert shown.out, shown.err
    return status, conforms("compare", shown.out)


def around(recorded: Recorded, run: str, *more: str) -> tuple[str, ...]:
    return run, "--moment", iso(recorded.moment), "--window", "1h", *more


def iso(at: float) -> str:
    from tachograph.text.moments import iso as text

    return text(at)


def test_a_run_before_and_after(recorded: Recorded, capsys: Any) -> None:
    """A tenth slower from a moment on: step time, throughput and MFU say so; memory and the phases are there."""
    status, found = compared(recorded, capsys, *around(recorded, "changed"))
    assert (status, found["verdict"]) == (1, "regression")
    rows = {row["name"]: row for row in found["measures"]}
    assert rows["step_time"]["change"] == pytest.approx(0.1, abs=0.01)
    assert rows["step_time"]["first"] == pytest.approx(0.3, abs=0.003)
    assert [name for name, row in rows.items() if row["verdict"] == "regression"] == [
        "step_time", "mean_step_time", "throughput", "mfu",
    ]  # fmt: skip
    assert rows["reserved"]["change"] == 0
    assert rows["throughput"]["first"] == pytest.approx(4096 / 0.3, rel=0.02)
    assert {"data", "forward", "backward", "wait"} <= rows.keys()
    assert found["first"]["facts"]["ranks"] == RANKS
    assert found["first"]["end"] == found["second"]["start"] == recorded.moment


def test_two_runs_that_are_alike(recorded: Recorded, capsys: Any) -> None:
    """Names with a slash are runs, not paths; the last two hours of each are found without a word on when."""
    status, found = compared(recorded, capsys, "same/one", "same/two")
    assert (status, found["verdict"]) == (0, "within the limit")
    rows = {row["name"]: row for row in found["measures"]}
    assert rows["loss"]["verdict"] == "within the limit"
    assert rows["loss"]["first"] == pytest.approx(rows["loss"]["second"], abs=0.02)
    assert found["first"]["end"] - found["first"]["start"] == pytest.approx(2 * HOUR, abs=120)


def test_a_fix_is_one(recorded: Recorded, capsys: Any) -> None:
    """The alert's expression held before the moment and never after: fixed, and the run is not worse."""
    status, found = compared(recorded, capsys, *around(recorded, "stalled", "--fixes", "DataStall"))
    assert (status, found["fix"]["verdict"]) == (0, "fixed"), found["fix"]
    assert "and never in 59 min" in found["fix"]["why"]


def test_a_fix_that_is_none(recorded: Recorded, capsys: Any) -> None:
    """The condition came again; one that never was is nothing to fix; one that is paid for is a regression."""
    status, found = compared(recorded, capsys, *around(recorded, "stalling", "--fixes", "DataStall"))
    assert (status, found["fix"]["verdict"]) == (1, "not fixed")
    assert found["fix"]["why"] == "its condition held for 29 min 30 s in the second run"
    status, found = compared(recorded, capsys, *around(recorded, "same/one", "--fixes", "DataStall"))
    assert (status, found["fix"]["verdict"]) == (3, "inconclusive")
    assert "nothing to fix" in found["fix"]["why"]
    status, found = compared(recorded, capsys, *around(recorded, "dearer", "--fixes", "DataStall"))
    assert (status, found["fix"]["verdict"]) == (1, "regression")
    assert "step time, typical" in found["fix"]["why"]


def test_silence_must_last(recorded: Recorded, capsys: Any) -> None:
    """Nine minutes without the alert say nothing: the rules need ten to know a run."""
    arguments = ["stalled", "--moment", iso(recorded.moment), "--window", "9m", "--fixes", "DataStall"]
    status, found = compared(recorded, capsys, *arguments)
    assert (status, found["fix"]["verdict"]) == (3, "inconclusive")
    assert "are needed to tell" in found["fix"]["why"]


def test_what_was_saved_is_compared_without_a_server(recorded: Recorded, tmp_path: Path, capsys: Any) -> None:
    """Both halves saved, with the alert, give the verdict of the run itself."""
    parts = []
    for name, since, until in (("a", -HOUR, 0), ("b", 0, HOUR)):
        parts.append(tmp_path / f"{name}.json")
        window = ("--since", iso(recorded.moment + since), "--until", iso(recorded.moment + until))
        saved = ["--save", str(parts[-1]), "stalled", *window, "--fixes", "DataStall", "--prometheus", recorded.url]
        assert main(saved) == 0
    capsys.readouterr()
    nowhere = f"http://127.0.0.1:{free_port()}"
    status = main([*map(str, parts), "--fixes", "DataStall", "--json", "--prometheus", nowhere])
    found = conforms("compare", capsys.readouterr().out)
    there = compared(recorded, capsys, *around(recorded, "stalled", "--fixes", "DataStall"))[1]
    assert (status, found["measures"], found["fix"]) == (0, there["measures"], there["fix"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["same/one", "same/tow"], "no run 'same/tow'"),
        (["same/one", "same/two", "--since", "10s"], "are too short to compare"),
        (["same/one", "same/two", "--since", "20d", "--until", "19d"], "has no data from"),
        (["same/one", "same/two", "--fixes", "DataStal"], "did you mean DataStall?"),
        (["same/one", "same/two", "--since", "yesterday"], "is not a time"),
        (["same/one", "same/two", "--window", "5"], "--window: '5' is not a duration"),
    ],
)
def test_runs_that_cannot_be_had(recorded: Recorded, capsys: Any, arguments: list[str], says: str) -> None:
    """Status 4, and one line."""
    assert main([*arguments, "--prometheus", recorded.url]) == 4
    shown = capsys.readouterr()
    assert says in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_no_prometheus(capsys: Any) -> None:
    """What was tried, and what to give; a run's name may be longer than that of a file."""
    assert main(["a" * 300, "b", "--prometheus", f"http://127.0.0.1:{free_port()}"]) == 4
    assert main(["a", "b", "--prometheus", f"http://127.0.0.1:{free_port()}"]) == 4
    assert "no Prometheus at http://127.0.0.1" in capsys.readouterr().err
