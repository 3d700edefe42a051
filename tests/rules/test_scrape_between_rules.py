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
    "checkpoint": ',phase="checkpoint"', }  # fmt: skip

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


def of_node(metric: str, number: int, **labels: str) -> str:
    """Return what a node concludes about its part of run r."""
    own = "".join(f',{label}="{value}"' for label, value in labels.items())
    return f'tachograph_run_{metric}{{run="r",instance="n{number}"{own}}}'


STORIES = {
    # A run on one node that makes ten steps a second, and is scraped every 15 s, does not stand still.
    "a run that steps": Story(
        subjects=("runs", "progress"),
        groups=("tachograph-progress",),
        scrape=15,
        series=page(0, rank_phase_seconds__forward="0x60")
        | {'tachograph_run_progress_age_seconds{run="r",instance="n0"}': "0x60"},
        ends=300,
        empty=("absent(run:stalled_seconds:min)", "max_over_time(run:stalled_seconds:min[4m]) > 0"),
    ),
    # Rank 3 lost the loss at step 100, and the others a step later; their pages come first.
    "the first that lost the loss": Story(
        subjects=("learning",),
        groups=("tachograph-loss-not-finite",),
        scrape=5,
        series={
            one: value
            for number in range(4)
            for one, value in {
                of_node("train_step", number): "99x20 130x40" if number == 3 else "99x19 130x40",
                of_node("loss_nonfinite_step", number, rank=str(number)): "_x21 100x40"
                if number == 3
                else "_x20 101x40",
                of_node("loss_nonfinite_seconds", number): f"_x{20 + (number == 3)} {1 + 5 * (number == 3)}+5x40",
                of_node("loss_nonfinite_ranks", number, when="first"): f"_x{20 + (number == 3)} 1x40",
                of_node("loss_nonfinite_ranks", number, when="lately"): f"_x{20 + (number == 3)} 1x40",
            }.items()
        },
        ends=150,
        empty=(
            'count_over_time(ALERTS{alertname="LossNotFinite",rank!="3"}[2m])',
            'absent(ALERTS{alertname="LossNotFinite",rank="3",alertstate="firing"})',
        ),
    ),
    # Nodes that hold the same parameters, and draw three batches a step, one of them a scrape behind.
    "ranks alike": Story(
        subjects=("runs", "learning", "invariants"),
        groups=("tachograph-invariants",),
        scrape=15,
        series={
            one: value
            for number in range(4)
            for one, value in {
                of_node("batches_per_step", number, held="most", rank=str(number)): "3x60",
                of_node("invariant", number, name="x", held="most", rank=str(number)): f"{70 - 7 * (number == 3)}+7x60",
                of_node("invariant_step", number, name="x"): f"{300 - 150 * (number == 3)}+150x60",
            }.items()
        },
        ends=300,
        empty=(
            'count_over_time(ALERTS{alertname=~"InvariantBroken|SilentDataCorruptionSuspected"}[4m])',
            "absent(rank:invariant_differing:value)",
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
