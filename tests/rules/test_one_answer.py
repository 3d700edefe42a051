"""Whoever is asked about a run that makes no step gives one answer: the node, `top`, `triage` and the rules.

The runs are made up: what their ranks do, how far they are in their collectives, who saves for the first time,
evaluates all along, is silent or has finished, and which limit they set. Each is whole on one node, so that the node
can know what the rules know.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.api.answer import NodeAnswer
from tachograph.node.ranks.frames import Bye, Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import LONGEST_TICK
from tachograph.top.node_source import NodeSource
from tachograph.triage.elsewhere import of_exporters
from tachograph_lab.replay import promtool_output
from tests.node.conftest import HandClock, Table, TwoGpus

RUNS = 240
LONGEST = 2400.0
PROGRESS = Path(__file__).parents[2] / "prometheus/rules/progress.yml"
PHASES = ("data", "forward", "backward", "collective", "optimizer", "other", "checkpoint", "eval", "init", None)
MOMENTS = (2400.0, 1000.0, 420.0, 330.0, 250.0, 125.0, 60.0, 20.0, 8.0)
OFTEN = (1, 2, 4, 4, 4, 4, 4, 3, 1)
"""How long ago runs made their last step, and how often."""


@dataclass
class Stopped:
    """A run that made its last step `seconds` ago, and has been where it is since."""

    run: str
    seconds: float
    step: float
    phases: list[str | None]
    entered: list[dict[str, float]]
    silent: int | None
    finished: int
    saved: bool
    evaluator: bool
    hang_seconds: float | None
    has_steps: bool

    @classmethod
    def draw(cls, number: int, of: random.Random) -> Stopped:
        """Make one up: most ranks wait somewhere, few do something else."""
        ranks = of.choice((1, 2, 3, 4, 8))
        usual = of.choice(("collective", "backward", "collective", of.choice(PHASES)))
        odd = of.choice((0, 1, 1, 2, ranks))
        phases = [of.choice(PHASES) if rank < odd else usual for rank in range(ranks)]
        of.shuffle(phases)
        entered: list[dict[str, float]] = [{} for _ in range(ranks)]
        if of.random() < 0.6:
            for group in of.choice((["0"], ["0"], ["0", "dp"])):
                behind = of.choice((0, 1, 1, 2))
                late = of.sample(range(ranks), min(behind, ranks))
                for rank in range(ranks):
                    entered[rank][group] = 800.0 - (of.choice((1.0, 2.0, 500.0)) if rank in late else 0.0)
        return cls(
            run=f"s{number}",
            seconds=of.choices(MOMENTS, OFTEN)[0],
            step=of.choice((0.05, 1.0, 9.0)),
            phases=phases,
            entered=entered,
            silent=of.randrange(ranks) if of.random() < 0.07 else None,
            finished=of.choice((0, 0, 0, 0, 0, 1, ranks, ranks + 1)),
            saved=of.random() < 0.6,
            evaluator=of.random() < 0.2,
            hang_seconds=of.choice((None, None, None, 30.0, 600.0)),
            has_steps=of.random() < 0.9,
        )

    @property
    def world(self) -> int:
        return len(self.phases) + self.finished + self.evaluator


class Node:
    """A node with all of these runs."""

    def __init__(self, stopped: list[Stopped], hand: HandClock, table: Table) -> None:
        self.stopped, self.hand, self.table = stopped, hand, table
        self.began = hand.now

    def play(self) -> None:
        """Let them all stop, so that all is as they say now."""
        for ago in (*MOMENTS, 0.0):
            self._wait_until(self.began + LONGEST + 100.0 - ago)
            for run in self.stopped:
                if run.seconds == ago:
                    self._greet(run)
                    self._stop(run)

    def _wait_until(self, moment: float) -> None:
        """Go on by ticks that are too short for a machine that slept in between."""
        while self.hand.now < moment:
            self.hand.now = min(self.hand.now + LONGEST_TICK, moment)
            self._alive()
            self.table.tick()

    def _link(self, run: Stopped, rank: int) -> tuple[str, int]:
        return run.run, rank

    def _greet(self, run: Stopped) -> None:
        for rank in range(run.world):
            pid = 5000 + rank
            hello = Hello(v=1, run=run.run, rank=rank, pid=pid, world_size=run.world)
            self.table.hello(self._link(run, rank), hello, Peer(1000 + int(run.run[1:]), pid))
        if run.evaluator:
            self._say(run, run.world - 1, "eval", {}, since=2000.0, made=None)

    def _alive(self) -> None:
        for run in self.stopped:
            for rank in range(run.world):
                if rank != run.silent or self.hand.now < self.began + LONGEST + 100.0 - run.seconds + 1:
                    self.table.heard(self._link(run, rank))

    def _stop(self, run: Stopped) -> None:
        ranks = len(run.phases)
        for rank in range(ranks, ranks + run.finished):
            self._say(run, rank, "optimizer", {})
            self.table.bye(self._link(run, rank), Bye(v=1, outcome="finished"))
        for rank, (phase, entered) in enumerate(zip(run.phases, run.entered, strict=True)):
            self._say(run, rank, phase, entered)

    def _say(
        self, run: Stopped, rank: int, phase: str | None, entered: dict[str, float], *,
        since: float = 0.0, made: float | None = 0.0,
    ) -> None:  # fmt: skip
        wall = self.hand.clock.wall()
        metrics: dict[str, Any] = {"recent_step_seconds": run.step, "steps_total": 400.0} if run.has_steps else {}
        if not run.has_steps and made is None:
            metrics = {}
        if entered:
            metrics["collective_enqueued"] = entered
        if run.saved and rank == 0:
            metrics |= {"checkpoint_timestamp_seconds": wall - 100.0, "checkpoint_step": 10.0}
        if run.hang_seconds is not None:
            metrics["threshold"] = {"hang_seconds": run.hang_seconds}
        said: dict[str, Any] = {"phase": phase}
        if phase is not None:
            said |= {"phase_since": wall - since, "phase_seconds": since}
        if made is not None:
            said |= {"progress_time": wall - made, "progress_seconds": made}
        self.table.heard(self._link(run, rank))
        self.table.state(self._link(run, rank), State(v=1, seq=1, time=wall, metrics=metrics, **said))


@pytest.fixture(scope="module")
def stopped() -> list[Stopped]:
    """The runs, always the same."""
    of = random.Random(281126)
    return [Stopped.draw(number, of) for number in range(RUNS)]


@pytest.fixture(scope="module")
def node(stopped: list[Stopped]) -> Node:
    """The node as it is now."""
    hand = HandClock()
    table = Table(Limits(ranks=10_000, series=10**7, retention_finished=1e6), hand.clock, TwoGpus())
    found = Node(stopped, hand, table)
    found.play()
    return found


def series(node: Node) -> Iterator[dict[str, str]]:
    """Yield what a scrape of the node shows, as it stays for a minute."""
    for sample in node.table.samples():
        if sample.metric.name.startswith("tachograph_run_") and hasattr(sample, "value"):
            labels = dict(zip(sample.metric.labels, sample.labels, strict=True)) | {"instance": "n"}
            text = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items() if value)
            yield {"series": f"{sample.metric.name}{{{text}}}", "values": f"{sample.value!r}x7"}


@pytest.fixture(scope="module")
def paged(node: Node, programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The ranks that RunHung names, by run; an empty text where it names none."""
    test = {
        "rule_files": [str(PROGRESS)],
        "evaluation_interval": "10s",
        "group_eval_order": ["tachograph-pace", "tachograph-progress"],
        "tests": [
            {
                "interval": "10s",
                "input_series": list(series(node)),
                "alert_rule_test": [{"eval_time": "50s", "alertname": "RunHung"}],
            }
        ],
    }
    path = tmp_path_factory.mktemp("one-answer") / "test.yml"
    path.write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run(
        [programs["promtool"], "test", "rules", path],
        env=os.environ | {"GOGC": "1000", "GOMAXPROCS": "1"}, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    output = promtool_output.read((done.stdout + done.stderr).splitlines())
    assert not output.errors, output.errors[:5]
    found: dict[str, set[str]] = {}
    for alert in output.alerts:
        found.setdefault(alert.labels["run"], set()).add(alert.labels.get("rank", ""))
    return found


@pytest.fixture(scope="module")
def judged(node: Node) -> dict[str, Any]:
    """The node's answer to /api/node."""
    answer: dict[str, Any] = json.loads(NodeAnswer("n", node.table, (), None, node.hand.clock).as_json())
    return answer


def test_the_node_pages_what_the_rules_page(
    stopped: list[Stopped], judged: dict[str, Any], paged: dict[str, set[str]]
) -> None:
    """A run hangs for both or for neither, and the node names one of those whom the rules name, or nobody like them."""
    wrong = {}
    for made, run in zip(stopped, sorted(judged["runs"], key=lambda run: int(run["run"][1:])), strict=True):
        by_rules = paged.get(made.run, set())
        by_node = {"" if run["culprit"] is None else str(run["culprit"])} if run["state"] == "hung" else set()
        if not (by_node <= by_rules and bool(by_node) == bool(by_rules)):
            wrong[made.run] = (made, run["state"], run["sentence"], by_node, by_rules)
    assert not wrong, "\n".join(map(str, [len(wrong), *list(wrong.values())[:12]]))
    assert len(paged) > RUNS / 4
    assert sum(ranks != {""} for ranks in paged.values()) > RUNS / 10


def test_top_and_triage_say_what_the_node_says(judged: dict[str, Any], pages: Any, stopped: list[Stopped]) -> None:
    """They read its answer: the state of each run, and the rank that holds it up."""
    pages.judged = json.dumps(judged)
    address = pages.url.removesuffix("/metrics")
    seen = NodeSource(address).fetch()
    of_top = {run.name: run.state for run in seen.runs}
    marked = {rank.run: rank.rank for rank in seen.ranks if "culprit" in rank.marks}
    for run in judged["runs"]:
        assert of_top[run["run"]] == run["state"]
        if run["state"] == "hung":
            assert marked.get(run["run"]) == run["culprit"]
    for state, severity in (("hung", "page"), ("overdue", "info")):
        runs = [run for run in judged["runs"] if run["state"] == state][:40]
        assert runs, state
        for number, run in enumerate(runs):
            pages.judged = json.dumps(judged | {"runs": [runs[number - 1], run]})  # all of them take long to read
            finding = of_exporters(run["run"], [address]).finding
            assert (finding.severity, finding.mode) == (severity, "communication_stall")
            what = "stands still" if run["world_size"] == 1 else "communication stall"
            assert finding.words == f"{what}: {run['sentence']}"
            named = run["culprit"] is not None and state == "hung"
            assert finding.ranks == ((str(run["culprit"]),) if named else ())
