"""`tachograph compare` with files alone, as CI uses it: verdicts, exit statuses, and files that are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.compare.command import main
from tachograph.compare.measures import NAMES
from tests.compare.conftest import Write
from tests.schemas import conforms

pytestmark = pytest.mark.usefixtures("wide")


def as_json(capsys: Any, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    status = main([*map(str, arguments), "--json"])
    return status, conforms("compare", capsys.readouterr().out)


def row(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in found["measures"] if one["name"] == name)


def test_a_slower_run_is_a_regression(write: Write, capsys: Any) -> None:
    """The step time is 5 % longer, by its interval; the phase that took it is shown, and throughput falls with it."""
    status, found = as_json(capsys, write("a"), write("b", 0.05))
    assert (status, found["verdict"]) == (1, "regression")
    step = row(found, "step_time")
    assert step["verdict"] == "regression"
    low, high = step["interval"]
    assert 0.025 < low < step["change"] < high < 0.08
    assert row(found, "backward")["change"] == pytest.approx(0.05, abs=0.02)
    assert abs(row(found, "forward")["change"]) < 0.01
    assert row(found, "throughput")["verdict"] == "regression"
    assert row(found, "memory")["verdict"] == row(found, "loss")["verdict"] == "within the limit"


def test_the_same_again_is_within_the_limit(write: Write, capsys: Any) -> None:
    """No change, and 1 % are none; a faster run is an improvement."""
    assert main([str(write("a")), str(write("b"))]) == 0
    assert main([str(write("a")), str(write("b", 0.01))]) == 0
    assert capsys.readouterr().out.count("verdict: within the limit") == 2
    assert main([str(write("a")), str(write("b", -0.1))]) == 0
    assert "verdict: improvement" in capsys.readouterr().out


def test_a_limit_can_be_set_for_all_or_for_one(write: Write, capsys: Any) -> None:
    """5 % are allowed by --limit 12; a phase is judged once a limit names it."""
    a, b = write("a"), write("b", 0.05)
    assert main([str(a), str(b), "--limit", "12"]) == 0
    capsys.readouterr()
    status, found = as_json(capsys, a, b, "--limit", "12", "--limit", "backward=3%")
    assert status == 1
    assert [one["name"] for one in found["measures"] if one["verdict"] == "regression"] == ["backward"]


def test_memory_and_loss_count(write: Write, capsys: Any) -> None:
    """A tenth more memory is a regression, and so is a loss that is 5 % higher at the same steps."""
    status, found = as_json(capsys, write("a"), write("b", memory=66e9))
    assert (status, row(found, "memory")["verdict"]) == (1, "regression")
    status, found = as_json(capsys, write("a"), write("c", loss=2.15))
    assert (status, row(found, "loss")["verdict"]) == (1, "regression")


def test_another_batch_is_compared_by_throughput(write: Write, capsys: Any) -> None:
    """Steps of twice the tokens may take longer: their time and loss are not judged, tokens a second are."""
    status, found = as_json(capsys, write("a"), write("b", 0.5, tokens=8192.0, loss=9.0))
    assert (status, found["verdict"]) == (0, "improvement")
    assert row(found, "step_time")["verdict"] == row(found, "loss")["verdict"] == "not judged"
    assert found["notes"][0] == "tokens per step: 32.8k and 65.5k"
    status, found = as_json(capsys, write("a"), write("c", 0.08, tokens=4096 * 1.08))
    assert (status, found["verdict"]) == (0, "within the limit"), "8 % more tokens in 8 % more time"
    _, found = as_json(capsys, write("a"), write("d", tokens=4096 * 197 / 200))
    assert row(found, "step_time")["verdict"] == "within the limit", "the tokens of the last three steps come late"


def test_several_runs_of_each_side(write: Write, capsys: Any) -> None:
    """How far runs of one side differ widens the interval, and all are listed; of one run each that is not known."""
    alone = row(as_json(capsys, write("a"), write("b", 0.05))[1], "step_time")
    sides = [[write(f"a{i}", 0.02 * i) for i in range(3)], [write(f"b{i}", 0.05 + 0.02 * i) for i in range(2)]]
    status, found = as_json(capsys, *sides[0], "--", *sides[1])
    together = row(found, "step_time")
    assert (status, found["verdict"]) == (3, "inconclusive")
    assert together["interval"][0] < alone["interval"][0] < alone["interval"][1] < together["interval"][1]
    assert [one["run"] for one in (found["first"], *found["more_first"], found["second"], *found["more_second"])] == [
        "a0", "a1", "a2", "b0", "b1",
    ]  # fmt: skip
    assert not found["notes"]
    assert main([str(sides[0][0]), "--", str(sides[1][0])]) in (0, 1)
    assert "how far runs of the same code differ is not in these intervals" in capsys.readouterr().out


def test_too_few_steps_are_inconclusive(write: Write, capsys: Any) -> None:
    """Fifteen steps say nothing: status 3, and why."""
    status, found = as_json(capsys, write("a", steps=15), write("b", 0.5, steps=15))
    assert (status, found["verdict"]) == (3, "inconclusive")
    assert row(found, "step_time")["why"] == "fewer than 20 samples"


def test_a_saved_file_says_the_same(write: Write, tmp_path: Path, capsys: Any) -> None:
    """--save keeps what a comparison needs, as JSON, and replaces a file as a whole."""
    a, b, kept = write("a"), write("b", 0.05), tmp_path / "kept.json"
    kept.write_text("old", encoding="utf-8")
    assert main(["--save", str(kept), str(a)]) == 0
    assert "kept.json: a, " in capsys.readouterr().out
    assert as_json(capsys, kept, b)[1]["measures"] == as_json(capsys, a, b)[1]["measures"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl", "kept.json"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x00\xff\xfe", "is no text"),
        (b"hello", "is damaged, or no run that tachograph saved: no JSON at line 1, column 1"),
        (b"[1, 2]", "a part of it has another form"),
        (b"{}", "it has no 'tachograph_compare'"),
        (b'{"tachograph_compare": 9}', "has version 9"),
        (b'{"tachograph_compare": 1, "run": 5}', "a part of it has another form"),
        (b'{"tachograph_steps": 7}', "has version 7"),
        (b'{"tachograph_steps": 1, "run": "r", "world_size": 1, "time": 0}', "has no ordinary step"),
        (b'{"tachograph_steps": 1}\n{"step": 1, "seconds": "NaN", "wait": 0, "phases": {}}', "is damaged"),
        (b'{"tachograph_steps": 1}\n{"step": 1, "seconds": 1e300, "wait": 0, "phases": {}}', "is damaged"),
        (b'{"tachograph_steps": 1}\nnonsense\n{}', ":2: "),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, write: Write, capsys: Any, content: bytes, says: str) -> None:
    """Status 4 and one line: empty, binary, of another version, truncated, nested without end."""
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    assert main([str(write("a")), str(bad)]) == 4
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"tachograph compare: {bad}")
    assert says in shown.err
    assert shown.err.count("\n") == 1


def test_the_last_line_of_a_killed_process_is_left_out(write: Write, capsys: Any) -> None:
    """A file that ends in the middle of a line is read up to there."""
    a, b = write("a"), write("b")
    b.write_text(b.read_text(encoding="utf-8")[:-60], encoding="utf-8")
    assert as_json(capsys, a, b)[0] == 0


def test_files_that_cannot_be_had(write: Write, tmp_path: Path, capsys: Any) -> None:
    """A missing file, a folder, a pipe, and a place that cannot be written to are errors of one line."""
    a = str(write("a"))
    assert main([a, "no.json"]) == 4
    assert "no.json is not a file" in capsys.readouterr().err
    assert main([a, str(tmp_path)]) == 4
    assert "is not a file" in capsys.readouterr().err
    assert main(["--save", str(tmp_path / "no/where.json"), a]) == 4
    assert "cannot write" in capsys.readouterr().err
    os.mkfifo(tmp_path / "fifo")
    assert main(["--save", str(tmp_path / "fifo"), a]) == 4
    assert capsys.readouterr().err.endswith(": not a regular file\n")
    assert (tmp_path / "fifo").is_fifo()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a"], "expected two runs or files, not 1"),
        (["a", "b", "c"], "not 3; if several on each side, put -- between them"),
        (["a", "a2", "--"], "expected runs or files on each side of one --"),
        (["--", "b"], "expected runs or files on each side of one --"),
        (["a", "--", "b", "--", "c"], "expected runs or files on each side of one --"),
        (["a", "a2", "--", "b", "--fixes", "DataStall"], "--fixes takes one run on each side"),
        (["a", "b", "--moment", "2h"], "expected one run, not 2"),
        (["a", "b", "--limit", "0"], "expected a percentage above 0"),
        (["a", "b", "--limit", "speed=5"], "no measure 'speed'"),
        (["a", "--moment", "1h", "--save", "f"], "give one of them"),
        (["a", "--moment", "1h", "--since", "2h"], "goes with --window"),
    ],
)
def test_wrong_arguments(capsys: Any, arguments: list[str], says: str) -> None:
    """Status 2, and what was expected."""
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_a_file_cannot_say_whether_an_alert_is_fixed(write: Write, capsys: Any) -> None:
    """A rank's steps know nothing of alerts: inconclusive, with what to do."""
    status, found = as_json(capsys, write("a"), write("b"), "--fixes", "DataStall")
    assert (status, found["fix"]["verdict"]) == (3, "inconclusive")
    assert "save that from Prometheus with --fixes DataStall" in found["fix"]["why"]


def test_the_document_names_every_measure() -> None:
    """`docs/regressions.md` has each name that --limit takes."""
    text = (Path(__file__).parents[2] / "docs/regressions.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in text] == []


def test_no_write_permission_is_no_traceback(write: Write, tmp_path: Path, capsys: Any) -> None:
    """A file that may not be read is named."""
    a = write("a")
    a.chmod(0)
    if os.access(a, os.R_OK):
        pytest.skip("root reads everything")
    assert main([str(a), str(a)]) == 4
    assert "Permission denied" in capsys.readouterr().err


def test_it_fits_a_terminal(write: Write, fits: Callable[..., None]) -> None:
    """A table that is wider has its verdicts below the rows, and no row is lost."""
    a, b = write("a"), write("b", 0.05)
    few, other = write("few", steps=15), write("other", 0.5, tokens=8192.0, loss=9.0)
    for second in (b, few, other):
        fits(lambda second=second: main([str(a), str(second)]))
    fits(lambda: main([str(a), str(b), "--fixes", "DataStall"]))
    fits(lambda: main([str(a), "--save", str(a.with_name("kept.json"))]))
