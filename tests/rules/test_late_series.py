"""Stores that show a new series seconds later than a new value of an old one, as VictoriaMetrics does.

Every series, scraped or recorded, comes late here. A page may then, too, but it names who it would have named, and what
excuses a run does so before anybody is paged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tachograph_lab.replay.evaluation import evaluate
from tachograph_lab.replay.recording import Recording, record
from tachograph_lab.replay.scraped import MISSING, STALE, ScrapedSeries, is_a
from tachograph_lab.replay.shipped_rules import ShippedRules, shipped
from tachograph_lab.scenario import load
from tools.mutation.trial import read

LATE_SECONDS, LATE_SCRAPES = 10, 3
"""Until a new series that a rule recorded is shown, and how many scrapes of a new one are not."""
LATER_SECONDS = 45
"""By how much a page may then be later: by what is scraped, and by what is recorded for each of three rules."""
EVALUATION_SECONDS = 2.5
SUBJECTS = ("clocks", "collectives", "exporter", "gpu", "learning", "progress", "ranks", "runs", "skew", "step_desync")
"""The rule files with these stories' pages, and with what these read."""

STORY = """\
title: {name}
story: {name}
seed: 1
lasts: {one.lasts}
fleet: {{run: r, nodes: {one.nodes}, gpus_per_node: 2}}
checkpoint: {{every: {one.saves_every}, takes: 60}}
faults: [{one.fault}]
"""


@dataclass(frozen=True)
class Story:
    """What happens at second 100 to rank 3 or to its node, and which alert pages it by when."""

    lasts: int
    fault: str = ""
    page: str = ""
    within: int = 0
    rank: str = "3"
    nodes: int = 2
    saves_every: int = 3600
    inhibits: str = ""


STORIES = {
    "a healthy run saves": Story(230, saves_every=100),
    "a loss is lost": Story(160, "{fault: nan, at: 100, rank: 3, what: loss}", "LossNotFinite", 7),
    "a rank is killed": Story(160, "{fault: kill, at: 100, rank: 3, cause: oom}", "RankDead", 8),
    "a rank fails": Story(170, "{fault: exit, at: 100, ranks: [3], code: 1}", "RankFailed", 12),
    "a rank is frozen": Story(180, "{fault: freeze, at: 100, rank: 3}", "RankFrozen", 25),
    "a rank leaves out a collective": Story(190, "{fault: skip_collective, at: 100, rank: 3}", "RunHung", 36),
    "a rank is stuck": Story(190, "{fault: stuck, at: 100, rank: 3, phase: data}", "RunHung", 36),
    "a node is lost": Story(
        190, "{fault: node_down, at: 100, node: node-1}", "NodeDown", 30, "", 4, inhibits="RunHung"
    ),
    "a GPU throttles": Story(
        250, "{fault: throttle, at: 100, ranks: [3], to: 0.7, cause: thermal}", "StragglerRank", 90
    ),
}
SHORT = ("a healthy run saves", "a rank is stuck")


class LateRecording(Recording):
    """A recording in which nothing is known of a series' first seconds."""

    def __init__(self, whole: Recording) -> None:
        super().__init__((), whole.scrape_seconds, whole.seconds, whole.grid_seconds)
        self._whole = whole

    def series(self) -> Iterator[ScrapedSeries]:
        """Yield every series."""
        for whole in self._whole.series():
            one = whole
            there = np.flatnonzero(~(is_a(MISSING, one.values) | is_a(STALE, one.values)))
            if len(there) and there[0] > 0:
                values = one.values.copy()
                values[: there[0] + LATE_SCRAPES] = MISSING
                one = one._replace(values=values)
            yield one


def late(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule file whose groups first show what they recorded an evaluation before, new series still later.

    Without the texts of its alerts, which take up to 60 queries each.
    """
    groups = []
    for group in content["groups"]:
        shown, computed = [], []
        for rule in group["rules"]:
            if (name := rule.get("record")) is None:
                computed.append({key: value for key, value in rule.items() if key != "annotations"})
                continue
            ahead = f"{name}:computed"
            computed.append({**rule, "record": ahead})
            shown.append({"record": name, "expr": f"{ahead} and last_over_time({ahead}[1h] offset {LATE_SECONDS}s)"})
        groups.append({**group, "rules": shown + computed})
    return {"groups": groups}


@pytest.fixture(scope="module")
def late_rules(tmp_path_factory: pytest.TempPathFactory) -> ShippedRules:
    """The rules of SUBJECTS, each of whose series comes late."""
    folder = tmp_path_factory.mktemp("late")
    for path in shipped().files:
        if path.stem in SUBJECTS:
            (folder / path.name).write_text(json.dumps(late(read(path))), encoding="utf-8")
    return ShippedRules(tuple(sorted(folder.iterdir())))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in STORIES]
)
def test_what_is_paged_where_series_are_late(name: str, late_rules: ShippedRules, tmp_path: Path) -> None:
    """Rank 3 or its node is paged where it is at fault, and nothing else is, with a name or without."""
    story = STORIES[name]
    path = tmp_path / "story.yaml"
    path.write_text(STORY.format(name=name, one=story), encoding="utf-8")
    recording = LateRecording(record(load(path), late_rules.words))
    fired = {
        (one.labels["alertname"], one.labels.get("rank", ""), one.labels["severity"]): one.start
        for one in evaluate(recording, late_rules, EVALUATION_SECONDS)
        if one.labels["severity"] == "critical" or one.labels["alertname"] == story.page
        if one.labels["alertname"] != story.inhibits
    }
    assert fired.keys() == ({(story.page, story.rank, "critical")} if story.page else set()), fired
    assert all(100 < start <= 100 + story.within + LATER_SECONDS for start in fired.values()), fired


class TwoNodes(Recording):
    """Two nodes of a run, by the second: rank 3 lost its loss first, and is scraped nine seconds after rank 5."""

    def __init__(self) -> None:
        super().__init__((), 1, 50)

    def series(self) -> Iterator[ScrapedSeries]:
        """Yield what the nodes show from their first scrape after the loss was lost; they make steps on."""
        for node, begin, rank, step, lost in (("n0", 19, "3", 40, 2), ("n1", 10, "5", 41, 1)):
            of_run = {"run": "r", "instance": node}
            for name, more, value in (
                ("loss_nonfinite_step", {"rank": rank, "gpu": rank, "uuid": f"U{rank}"}, step),
                ("loss_nonfinite_seconds", {}, 5),
                ("loss_nonfinite_ranks", {"when": "first"}, 1),
                ("loss_nonfinite_ranks", {"when": "lately"}, lost),
            ):
                values = np.full(51, MISSING)
                values[begin:] = value
                yield ScrapedSeries(f"tachograph_run_{name}", of_run | more, values)
            yield ScrapedSeries("tachograph_run_train_step", of_run, np.arange(30.0, 81.0))


def test_a_loss_is_not_named_after_the_second_to_lose_it(late_rules: ShippedRules) -> None:
    """Where the first one is shown already, and what the rules recorded before it was is not yet replaced."""
    fired = [
        one
        for one in evaluate(TwoNodes(), late_rules, EVALUATION_SECONDS)
        if one.labels["alertname"] == "LossNotFinite"
    ]
    assert [one.labels.get("rank") for one in fired] == ["3"], fired
