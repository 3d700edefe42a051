"""The command lines of replays: everything that cannot be replayed is reported in a line, before anything starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tachograph_lab.commands import fleet as fleet_command
from tachograph_lab.commands import replay as command
from tachograph_lab.replay.batch import Outcome
from tachograph_lab.replay.verdict import ReceivedAlert, judge
from tachograph_lab.scenario import INCIDENTS, Expected, Scenario, ScenarioError
from tachograph_lab.scenario.faults import Kill


def test_a_number_names_a_shipped_incident() -> None:
    """`4`, `04` and the path mean the same file, once; `15` means all of its parts, `15b` one of them."""
    shipped = command.find(["4"])
    assert [path.name.partition("-")[0] for path in shipped] == ["04"]
    assert command.find(["04", "4", str(shipped[0])]) == shipped
    parts = command.find(["15"])
    assert len(parts) > 1
    assert [path.name[:4] for path in command.find(["15b"])] == ["15b-"]
    assert command.find(["15b", "15"])[0] in parts
    assert set(shipped) <= set(INCIDENTS.glob("*.yaml"))


def test_every_unknown_name_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A number beyond the incidents and a file that is not there: a line each with what there is, status 2."""
    with pytest.raises(ScenarioError) as error:
        command.find(["99", "4", "nowhere.yaml"])
    number, file = error.value.lines
    assert number.startswith("99: no such incident; there are ")
    assert file.startswith("nowhere.yaml: no such file; ")
    for main in (command.main, fleet_command.main):
        assert main(["nowhere.yaml"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_scenario_that_is_not_live_cannot_be_replayed_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--live` asks for a `live:` section and says so."""
    file = tmp_path / "quiet.yaml"
    file.write_text("title: Quiet\nstory: Nothing happens.\nlasts: 60\nfleet: {nodes: 1}\n", encoding="utf-8")
    assert command.main(["--live", str(file)]) == 2
    assert "`live:`" in capsys.readouterr().err


def test_a_fault_in_a_scenario_is_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of a ScenarioError go to stderr as they are."""
    file = tmp_path / "wrong.yaml"
    file.write_text("title: W\nstory: S\nlasts: 60\nfleet: {nodes: 1}\nfaults: [{fault: gremlins, at: 5}]\n")
    assert command.main([str(file)]) == 2
    assert f"{file}:5: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "intervals"),
    [
        ([], [(None, None)]),
        (["--scrape", "15s"], [(15, None)]),
        (["--scrape", "30", "--evaluation", "15s"], [(30, 15)]),
        (["--intervals", "5s,15s,1m"], [(5, 5), (15, 15), (60, 60)]),
    ],
)
def test_intervals(words: list[str], intervals: list[tuple[float | None, float | None]]) -> None:
    """One of scrapes, one of evaluations, or several of both in turn."""
    assert command._parse(["4", *words]).at == intervals


@pytest.mark.parametrize("words", [["--scrape", "0"], ["--intervals", "5s,x"], ["--scrape", "1500ms"]])
def test_what_is_no_interval(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A line that says so, and status 2."""
    with pytest.raises(SystemExit) as ended:
        command.main(["4", *words])
    assert ended.value.code == 2
    assert "expected" in capsys.readouterr().err


def test_several_intervals_end_with_a_table() -> None:
    """A row for each scenario, a column for each interval; found / allowed, and what is wrong."""
    late = Expected(alert="RankDead", receiver="page", within=10, plus_scrapes=2)
    story = Scenario(title="Killed", story="s", lasts=100, incident=10, expect=(late,), faults=(Kill(at=60, rank=0),))
    page = ReceivedAlert(75.0, "page", "firing", {"alertname": "RankDead"}, {})
    other = ReceivedAlert(80.0, "page", "firing", {"alertname": "RunHung"}, {})
    slow = story.at_intervals(30, 30)
    outcomes = [
        Outcome(slow, judge(slow, [page, other]), 1.0),
        Outcome(story, judge(story, [page]), 1.0),
    ]
    assert command.table(outcomes) == [
        "| scenario | 5 s | 30 s |",
        "|---|---|---|",
        "| 10. Killed | RankDead 15 / 20 | FAIL RankDead 15 / 70, extra RunHung |",
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_replay_that_is_ended_leaves_nothing(tmp_path: Path, jobs: int) -> None:
    """SIGTERM, as systemd and CI send it: status 143, and no folder, no promtool is left, in no process."""
    file = tmp_path / "quiet.yaml"
    file.write_text(
        "title: Quiet\nstory: Nothing happens.\nlasts: 8m\nfleet: {nodes: 1, gpus_per_node: 2}\n", encoding="utf-8"
    )
    second = tmp_path / "second.yaml"
    second.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "tachograph_lab", "replay"]
    command += ["--suite", "bookworm", "--jobs", str(jobs), file, second]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(scratch)}, stdout=subprocess.DEVNULL) as replay:
        deadline = time.monotonic() + 60
        while not [*scratch.rglob("test.yml")]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        replay.terminate()
        assert replay.wait(90) == 128 + signal.SIGTERM
    assert [*scratch.iterdir()] == []
