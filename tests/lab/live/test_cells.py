"""Two cells and a level above, as `tachograph bundle --scale-out` has them: each incident is one page, from above."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tachograph.doctor import prometheus_checks
from tachograph.doctor.check_result import FAIL
from tachograph.servers.prometheus_api import Prometheus
from tachograph_lab import binaries
from tachograph_lab.live.cells import CellFleet
from tachograph_lab.live.watched_fleet import wait
from tachograph_lab.pager import FIRING, PagedAlert, Pager
from tachograph_lab.scenario import load
from tests.conftest import NEWEST, OLDEST

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

STORY = """\
title: Two cells
story: The first half of all nodes is cell a, the others are cell b.
seed: 1
lasts: 1h
fleet: {{run: llama-7b, nodes: {nodes}, gpus_per_node: 2}}
checkpoint: {{every: {every}, takes: 20s}}
faults: [{fault}]
runs: [{more}]
"""


@dataclass(frozen=True)
class Received:
    """What reached people, and how many notifications each alert took."""

    alerts: list[PagedAlert]
    times_sent: Mapping[str, int]

    def told(self) -> list[tuple[str, str, str, str]]:
        """Return receiver, alert, rank and node of all that was sent as firing."""
        return [
            (one.receiver, one.alert, one.labels.get("rank", ""), one.labels.get("instance", ""))
            for one in self.alerts
            if one.status == FIRING and one.receiver != "watchdog"
        ]

    def resolved(self) -> list[str]:
        return [one.alert for one in self.alerts if one.status != FIRING]


class Played:
    """A fleet that is being watched from second 0 on."""

    def __init__(self, watched: CellFleet, pager: Pager) -> None:
        self.watched, self.pager = watched, pager
        self.epoch = watched.announcement.epoch

    def until(self, second: float) -> None:
        wait(self.watched.children.running, self.epoch + second)

    def kill(self, part: str) -> None:
        """End a program without a chance to save or to say so."""
        for child in self.watched.children.running:
            if child.name == part:
                child.process.kill()
        self.watched.children.end(part)

    def start_again(self) -> None:
        self.watched.start_again()

    def paged(self, alert: str, seconds: float) -> PagedAlert:
        """Return the first page of an alert; it must come within so many seconds."""
        page = self.pager.wait_for(lambda one: one.alert == alert and one.receiver == "page", seconds)
        assert page, f"no {alert} within {seconds} s: {[one.alert for one in self.pager.pages()]}"
        return page

    def wrong(self) -> list[str]:
        """Return what `tachograph doctor` finds wrong with any Prometheus."""
        servers = [part for part in self.watched.parts if not part.startswith("alertmanager")]
        found = [one for part in servers for one in prometheus_checks.checks(Prometheus(self.watched.url(part)))]
        return [one.what for one in found if one.verdict == FAIL]

    def received(self) -> Received:
        alerts = self.pager.pages()
        return Received(alerts, {one.alert: self.pager.times_sent(one.alert) for one in alerts})


@contextmanager
def played(
    folder: Path, fault: str, *, every: str = "1h", nodes: int = 2, more: str = "", suite: str = OLDEST
) -> Iterator[Played]:
    path = folder / "story.yaml"
    path.write_text(STORY.format(every=every, nodes=nodes, fault=fault, more=more), encoding="utf-8")
    with Pager() as pager, CellFleet(load(path), folder, pager.url, suite=suite) as watched:
        yield Played(watched, pager)


def hang(folder: Path) -> Received:
    """A rank of cell b hangs after one Alertmanager was lost; then everything is restarted, one after the other."""
    with played(folder, "{fault: stuck, at: 60, rank: 3, phase: data}") as story:
        story.until(30)
        story.kill("alertmanager-0")
        story.paged("RunHung", 120)
        story.until(120)
        for second, part in enumerate(
            ("alertmanager-0", "cell-b", "above-1", "alertmanager-1", "above-0", "cell-a", "alertmanager-0")
        ):
            story.kill(part)
            story.start_again()
            story.until(120 + 25 * (second + 1))
        return story.received()


def death(folder: Path) -> Received:
    """Three saves of a healthy run, then a rank of cell b is killed; under the newest Prometheus."""
    with played(folder, "{fault: kill, at: 190, rank: 2, cause: oom}", every="50s", suite=NEWEST) as story:
        story.until(190)
        assert story.received().told() == []
        assert story.wrong() == []
        story.paged("RankDead", 60)
        story.until(270)
        return story.received()


def unseen(folder: Path) -> Received:
    """A rank of cell b hangs while both replicas above are away; they return."""
    with played(folder, "{fault: stuck, at: 80, rank: 3, phase: data}") as story:
        story.until(60)
        story.kill("above-0")
        story.kill("above-1")
        story.until(130)
        story.start_again()
        story.paged("RunHung", 90)
        story.until(250)
        return story.received()


def away(folder: Path) -> Received:
    """The Prometheus of cell b is lost for 13 minutes, with a third of a run and all of another, which go on."""
    with played(folder, "", nodes=3, more="{fleet: {run: tune, first_node: 3, nodes: 1}}") as story:
        story.until(90)
        story.kill("cell-b")
        story.paged("NodesUnreachable", 180)
        story.until(90 + 780)
        story.start_again()
        story.until(90 + 900)
        return story.received()


STORIES: Mapping[str, Callable[[Path], Received]] = {"away": away, "hang": hang, "death": death, "unseen": unseen}


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Received]]]:
    """Two at a time, the longest first: most of the time they wait."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(play, tmp_path_factory.mktemp(name)) for name, play in STORIES.items()}


def test_a_hang_is_one_page_whatever_is_restarted(stories: Mapping[str, Future[Received]]) -> None:
    """The rank of cell b, by the one Alertmanager that is left; restarts in any order neither repeat nor end it."""
    found = stories["hang"].result()
    assert found.told() == [("page", "RunHung", "3", "node-1")]
    assert found.times_sent["RunHung"] == 1
    assert found.resolved() == []


def test_saves_bring_nothing_and_a_death_one_page(stories: Mapping[str, Future[Received]]) -> None:
    """The rank that was killed, once, though two replicas say so to two Alertmanagers."""
    try:
        found = stories["death"].result()
    except binaries.BinariesUnavailable as error:
        pytest.skip(str(error))
    assert found.told() == [("page", "RankDead", "2", "node-1")]
    assert found.times_sent["RankDead"] == 1


def test_a_hang_that_nobody_saw_begin_is_one_page(stories: Mapping[str, Future[Received]]) -> None:
    """Cells keep what they cannot send."""
    found = stories["unseen"].result()
    assert found.told() == [("page", "RunHung", "3", "node-1")]
    assert found.times_sent["RunHung"] == 1


def test_a_cell_that_is_away_is_one_page(stories: Mapping[str, Future[Received]]) -> None:
    """Its nodes and ranks are unknown: none is down, dead or missing, no run is blind. It ends with the return."""
    found = stories["away"].result()
    assert found.told() == [("page", "NodesUnreachable", "", "")]
    assert {one.labels.get("cell") for one in found.alerts if one.alert == "NodesUnreachable"} == {"b"}
    assert found.resolved() == ["NodesUnreachable"]
    assert found.times_sent["NodesUnreachable"] == 1
