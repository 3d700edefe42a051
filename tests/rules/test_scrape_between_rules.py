"""A page that comes in while a group is evaluated: rules that have run read the one before, those to come the new one.

That can be so at every evaluation, where scrape and evaluation fall on the same moment. Each group is split before each
of its rules; what stands before the split reads everything one scrape late.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.mutation.trial import read

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"
READING = re.compile(r"\b(?:tachograph_\w+|up)\b(?:\{[^}]*\})?(?:\[\w+\])?(?! offset|[\w({\[])")
"""A selector of what is scraped, and its window."""
LABELS = {
    "gpu": ',gpu="0",uuid="U"', "running": ',state="running"', "dead": ',state="dead"', "frozen": ',state="frozen"',
    "loss": ',source="loss"', "died": ',reason="died"', "forward": ',phase="forward"',
    "checkpoint": ',phase="checkpoint"', "parameters": ',name="parameters"',
}  # fmt: skip

Series = Mapping[str, str]


@dataclass(frozen=True)
class Story:
    """What Prometheus scrapes, and what must not be true at the end, wherever a group is split."""

    subjects: tuple[str, ...]
    """The rule files that are loaded."""
    groups: tuple[str, ...]
    scrape: int
    series: Series
    ends: int
    empty: tuple[str, ...]
    """Queries that find nothing then."""

    def files(self, folder: Path) -> Iterator[Path]:
        """Write a test for each split of each group; yield their paths."""
        content = {stem: read(RULES / f"{stem}.yml") for stem in self.subjects}
        order = [group["name"] for one in content.values() for group in one["groups"]]
        for name in self.groups:
            group = next(group for one in content.values() for group in one["groups"] if group["name"] == name)
            for split in range(len(group["rules"])):
                own = folder / f"{name}-{split}"
                own.mkdir()
                for stem, one in content.items():
                    text = {
                        "groups": [late(each, split, self.scrape) if each is group else each for each in one["groups"]]
                    }
                    (own / f"{stem}.yml").write_text(json.dumps(text), encoding="utf-8")
                yield self._test(own / "test.yml", f"{name} split before rule {split}", order)

    def _test(self, path: Path, name: str, order: list[str]) -> Path:
        pace = f"{self.scrape}s"
        test: dict[str, Any] = {
            "rule_files": [f"{stem}.yml" for stem in self.subjects],
            "evaluation_interval": pace,
            "group_eval_order": order,
            "tests": [
                {
                    "name": name,
                    "interval": pace,
                    "input_series": [{"series": one, "values": values} for one, values in self.series.items()],
                    "promql_expr_test": [{"expr": expr, "eval_time": f"{self.ends}s"} for expr in self.empty],
                }
            ],
        }
        path.write_text(json.dumps(test), encoding="utf-8")
        return path


def late(group: Mapping[str, Any], split: int, scrape: int) -> dict[str, Any]:
    """Return a group whose first rules read what was scraped before."""
    rules = [
        rule | {"expr": READING.sub(rf"\g<0> offset {scrape}s", rule["expr"])} if number < split else rule
        for number, rule in enumerate(group["rules"])
    ]
    return {**group, "rules": rules}


def page(number: int, **values: str) -> dict[str, str]:
    """Return the page of a node with one rank of run r, with these metrics; what follows `__` is a key of LABELS."""
    who = f'run="r",rank="{number}",instance="n{number}"'
    usual = {
        "rank_info__gpu": "1x60",
        "rank_up": "1x60",
        "rank_state__running": "1x60",
        "train_recent_step_seconds": "0.1x60",
    }
    shown = {f"tachograph_{name}{{{who}}}": value for name, value in (usual | values).items()}
    named = {
        re.sub(r"__(\w+){(.*)}", lambda found: "{" + found[2] + LABELS[found[1]] + "}", one): shown[one]
        for one in shown
    }
    return named | {f'up{{job="tachograph",instance="n{number}"}}': "1x60"}


STORIES = {
    # A run on one node that makes ten steps a second, and is scraped every 15 s, does not stand still.
    "a run that steps": Story(
        subjects=("runs", "progress"),
        groups=("tachograph-progress",),
        scrape=15,
        series=page(0, rank_progress_timestamp_seconds="0+15x60", rank_phase_seconds__forward="0x60"),
        ends=300,
        empty=("absent(run:stalled_seconds:min)", "max_over_time(run:stalled_seconds:min[4m]) > 0"),
    ),
    # A save holds Python's lock for 40 s, from second 100 on; a minute of that is no fault.
    "a rank silent in its save": Story(
        subjects=("runs", "progress", "ranks"),
        groups=("tachograph-frozen",),
        scrape=5,
        series=page(
            0,
            rank_state__running="1x22 0x4 1x60",
            rank_state__frozen="0x22 1x4 0x60",
            rank_heartbeat_timestamp_seconds="0+5x20 100x6 135+5x60",
            rank_phase_seconds__checkpoint="_x15 1+5x12 stale",
            rank_phase_seconds__forward="0x14 stale _x12 0x60",
        ),
        ends=200,
        empty=(
            'count_over_time(ALERTS{alertname="RankFrozen"}[3m])',
            "absent(max_over_time(rank:silent_seconds:max[3m]) > 30)",
        ),
    ),
    # The same, scraped every minute: one page shows that the save began and how long the rank has been silent.
    "a rank silent in its save, every minute": Story(
        subjects=("runs", "progress", "ranks"),
        groups=("tachograph-frozen",),
        scrape=60,
        series=page(
            0,
            rank_state__running="1x1 0 1x9",
            rank_state__frozen="_x2 1 0x9",
            rank_heartbeat_timestamp_seconds="0 60 80 180+60x9",
            rank_phase_seconds__checkpoint="_x2 45 stale",
            rank_phase_seconds__forward="0x1 stale 0x9",
        ),
        ends=300,
        empty=(
            'count_over_time(ALERTS{alertname="RankFrozen"}[5m])',
            "absent(max_over_time(rank:silent_seconds:max[5m]) > 30)",
        ),
    ),
    # Rank 0 ended at second 99 and is up on another node when that is seen.
    "a rank that came back elsewhere": Story(
        subjects=("runs", "progress", "ranks"),
        groups=("tachograph-ranks",),
        scrape=5,
        series=page(
            0,
            rank_up="1x19 0x40",
            rank_state__running="1x19 0x40",
            rank_state__dead="0x19 1x40",
            rank_ended_timestamp_seconds__died="_x20 99x40",
            rank_start_timestamp_seconds="0x60",
        )
        | {one.replace('instance="n0"', 'instance="n1"'): "_x20 1x40" for one in page(0) if "rank_" in one}
        | page(1, rank_progress_timestamp_seconds="0+5x60"),
        ends=200,
        empty=(
            'count_over_time(ALERTS{alertname=~"Rank.*|RunDown"}[3m])',
            "absent(max_over_time(rank:moved:info[1m]))",
        ),
    ),
    # Rank 3 lost the loss at step 100, and the others a step later; their pages come first.
    "the first that lost the loss": Story(
        subjects=("learning",),
        groups=("tachograph-loss-not-finite",),
        scrape=5,
        series={
            one: value
            for number in range(4)
            for one, value in page(
                number,
                train_step="99x20 130x40" if number == 3 else "99x19 130x40",
                train_loss="2x20" + 20 * " NaN" if number == 3 else "2x19" + 20 * " NaN",
                train_nonfinite_step__loss="_x21 100x40" if number == 3 else "_x20 101x40",
            ).items()
        },
        ends=150,
        empty=(
            'count_over_time(ALERTS{alertname="LossNotFinite",rank!="3"}[2m])',
            'absent(ALERTS{alertname="LossNotFinite",rank="3",alertstate="firing"})',
        ),
    ),
    # Rank 0 saved after the loss had begun to spike, and its page comes before those of the others.
    "a save within a spike": Story(
        subjects=("learning",),
        groups=("tachograph-learning",),
        scrape=5,
        series={
            one: value
            for number in range(4)
            for one, value in page(
                number,
                train_loss="2x19 20x40" if number == 0 else "2x20 20x40",
                train_loss_spike_steps="0x19 2+50x40" if number == 0 else "0x20 52+50x40",
                **(
                    {"train_checkpoint_step": "900x19 1000x40", "train_checkpoint_timestamp_seconds": "9x19 99x40"}
                    if number == 0
                    else {}
                ),
            ).items()
        },
        ends=150,
        empty=(
            "max_over_time(run:good_checkpoint_step:max[1m]) != 900",
            "max_over_time(run:good_checkpoint_timestamp_seconds:max[1m]) != 9",
            "absent(run:good_checkpoint_step:max) or absent(run:good_checkpoint_timestamp_seconds:max)",
        ),
    ),
    # Ranks that draw three batches a step and hold the same parameters, one of them a scrape behind.
    "ranks alike": Story(
        subjects=("learning", "invariants"),
        groups=("tachograph-batches", "tachograph-invariants"),
        scrape=15,
        series={
            one: value
            for number in range(4)
            for one, value in page(
                number,
                train_batches_total=f"{1000 - 450 * (number == 3)}+450x60",
                train_steps_total=f"{300 - 150 * (number == 3)}+150x60",
                train_invariant__parameters=f"{70 - 7 * (number == 3)}+7x60",
                train_invariant_step__parameters=f"{300 - 150 * (number == 3)}+150x60",
            ).items()
        },
        ends=300,
        empty=(
            'count_over_time(ALERTS{alertname=~"InvariantBroken|SilentDataCorruptionSuspected"}[4m])',
            "absent(run:batches_per_step:mean150s == 3)",
            'absent(run:invariant_differs:info{name="parameters"})',
        ),
    ),
}


QUICK = "ranks alike"
"""Each of the others takes up to ten seconds of a core; `make test` plays their like in test_whole_incidents.py."""


@pytest.mark.parametrize(
    "story",
    [pytest.param(one, id=name, marks=() if name == QUICK else pytest.mark.slow) for name, one in STORIES.items()],
)
def test_a_scrape_between_two_rules_changes_nothing(promtool: Callable[..., str], story: Story, tmp_path: Path) -> None:
    """Whatever group a page comes into, and whenever: no false alert, no other culprit, no number of two moments."""
    promtool("test", "rules", *story.files(tmp_path))
