"""`tachograph history` on a real Prometheus with a made-up past."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.history.command import main
from tachograph.history.recorded import CHUNK, STEP, read
from tachograph.servers.prometheus_api import Prometheus
from tests.history.conftest import AFTER_SAVES, BLAMED, ELSEWHERE, LENGTH, MadePast
from tests.schemas import conforms
from tools.debian.help_texts import help_of

pytestmark = [pytest.mark.prometheus, pytest.mark.usefixtures("wide")]


def asked(past: MadePast, *more: str) -> list[str]:
    return ["--prometheus", past.url, *more]


@pytest.fixture(scope="module")
def found(past: MadePast) -> Any:
    """What `--json` prints of the whole past."""
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "history", *asked(past, "--json")],
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    return conforms("history", done.stdout)


def test_the_node_with_most_incidents_comes_first(found: Any) -> None:
    """Each with what it was blamed for, in which runs, and how likely as many are by chance."""
    assert found["incidents"] == sum(BLAMED.values())
    assert {one["node"]: one["incidents"] for one in found["nodes"]} == BLAMED
    first, second, *others = found["nodes"]
    assert (first["node"], first["share"], first["runs"]) == ("node-03", 0.5, ["run-0", "run-1", "run-2"])
    assert first["alerts"] == {"StragglerNode": 5, "GpuXidFatal": 4}
    assert first["chance"] < 1e-6
    assert second["chance"] < 0.05
    assert all(one["chance"] > 0.5 for one in others)
    assert found["nodes_seen"] == 24


def test_gpus_and_links_are_named(found: Any) -> None:
    """A GPU by its alert, a port by what was down when the alert began."""
    assert [(one["node"], one["part"], one["incidents"]) for one in found["gpus"][:1]] == [
        ("node-03", "GPU 3 (GPU-node-03)", 4)
    ]
    assert [(one["node"], one["part"], one["incidents"]) for one in found["links"]] == [("node-07", "mlx5_0 port 1", 2)]


def test_a_cause_that_precedes_failures_is_told_from_those_that_do_not(found: Any, past: MadePast) -> None:
    """Saves do; evaluations do not; of what there are few of, or few failures after, no ratio is named."""
    assert found["failures"] == len(past.failures) == AFTER_SAVES + ELSEWHERE
    of = {one["event"]: one for one in found["precedes"]}
    assert {name: one["verdict"] for name, one in of.items()} == {
        "save": "precedes",
        "evaluation": "no difference",
        "learning rate": "too few",
        "batch": "too few",
        "restart": "too few",
        "hardware": "too few",
    }
    save = of["save"]
    assert (save["after"], save["failures"], save["events"]) == (AFTER_SAVES, AFTER_SAVES + ELSEWHERE, 120)
    true = AFTER_SAVES / ELSEWHERE * 5  # ten minutes of an hour are soon after a save
    assert 0.8 * true < save["ratio"] < 1.25 * true
    assert 1 < save["low"] < true < save["high"]
    assert (of["batch"]["events"], of["batch"]["ratio"]) == (2, None)
    assert of["restart"]["events"] == AFTER_SAVES + ELSEWHERE
    evaluation = of["evaluation"]
    assert evaluation["low"] < 1 < evaluation["high"]
    assert (of["learning rate"]["events"], of["hardware"]["ratio"]) == (1, None)


def test_what_a_person_reads(past: MadePast, capsys: pytest.CaptureFixture[str]) -> None:
    """The nodes that have more than half, the culprits, and what precedes failures, with what is too little to say."""
    assert main(asked(past)) == 0
    text = capsys.readouterr().out
    assert "18 incidents with a culprit; 2 of 24 nodes have 78% of them" in text
    assert "    9  node-03: StragglerNode 5, GpuXidFatal 4; runs run-0, run-1, run-2; last" in text
    assert "by chance below 0.01%" in text
    assert "    2  node-07 mlx5_0 port 1: NicLinkDown 2" in text
    assert f"  120 saves: {AFTER_SAVES} of 26 failures came within 10 min after one, " in text
    assert "MORE FAILURES SOON AFTER ONE" in text
    assert "  2 changes of the batch: 0 of 26 failures came within 10 min after one (0.1 by chance); too few" in text
    assert "  1 jump of the learning rate: " in text
    assert "Before that nothing is recorded" in text


@pytest.mark.parametrize("asked_for", [1200, LENGTH])
def test_a_past_of_minutes_has_a_beginning(past: MadePast, asked_for: int) -> None:
    """Nine minutes after recording began, however far back a person looks, it says nine and neither 0 s nor nothing."""
    end = past.start + 540
    began = read(Prometheus(past.url), end - asked_for, end).first
    assert began is not None
    assert abs(began - past.start) <= 15


@pytest.mark.parametrize("run", ["well", "hurt"])
def test_one_run_alone(past: MadePast, capsys: pytest.CaptureFixture[str], run: str) -> None:
    """Of a run that never failed, or that few failures are known of, nothing is made up."""
    since = [] if run == "well" else ["--since", "6h"]
    assert main(asked(past, run, *since)) == 0
    text = capsys.readouterr().out
    assert "Too few to say what precedes them: 5 are needed." in text
    assert "No node was blamed" in text
    assert "×" not in text


def test_incidents_of_a_runs_nodes_are_its_own(past: MadePast, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever run's alert named a node first in that hour, as long as this one was there: a quarter of the time."""
    assert main(asked(past, "beside", "--json")) == 0
    (node,) = conforms("history", capsys.readouterr().out)["nodes"]
    assert (node["node"], node["incidents"], node["runs"]) == ("node-07", 3, ["run-0", "run-1", "run-2"])


def test_exit_statuses(past: MadePast, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the help and docs/reference.md document, and no other."""
    found = {0: main(asked(past, "well")), 1: main(asked(past, "hart")), 2: main(asked(past, "--within", "soon"))}
    assert found == {number: number for number in help_of("history").statuses()}
    assert capsys.readouterr().err.count("\n") == 2


def test_wrong_arguments(past: MadePast, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what to do."""
    for wrong in (["--since", "soon"], ["--since", "5m"], ["--since", "10y"], ["--within", "1s"]):
        assert main(asked(past, *wrong)) == 2
        assert wrong[0] in capsys.readouterr().err
    assert main(asked(past, "hart")) == 1
    assert "no run 'hart' in Prometheus" in capsys.readouterr().err
    assert main(["--prometheus", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("tachograph history: no Prometheus at http://127.0.0.1:9: ")


def test_time_in_which_a_run_could_fail(past: MadePast) -> None:
    """Every minute that it ran, once, though more than one query asks for them; not those in which an alert fires."""
    assert CHUNK // STEP < 11_000
    assert CHUNK < LENGTH
    runs = read(Prometheus(past.url), past.start, past.end - STEP).runs
    assert len(runs["well"].minutes) == len(set(runs["well"].minutes)) == LENGTH // STEP
    without = LENGTH / STEP - len(runs["hurt"].minutes)  # five minutes of an alert, and five without the run
    assert 9 * len(past.failures) <= without <= 11 * len(past.failures)
    assert [one.at for one in runs["hurt"].failures] == past.failures
    assert {one.alert for one in runs["hurt"].failures} == {"RankFailed"}


def test_it_fits_a_terminal(past: MadePast, fits: Callable[..., None]) -> None:
    """However many runs a node has hurt, and whatever can be said of causes."""
    fits(lambda: main(asked(past)), takes_long=True)
