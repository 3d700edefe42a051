"""The figures of one text agree: each is worked out again from the others, in every text that is rendered.

A page is read once, most often as it was first written: a loss of 15 % beside two speeds that are 44 % apart is wrong
whichever of them is right.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tachograph_lab.replay import promtool_output
from tools.mutation.trial import read

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"
RANKS = 4
SCRAPE = 5
WAIT = 0.1
"""Seconds of a step that each rank waits for the others, when none is late."""
SLOW_FROM, SAVES, SLOW_UNTIL, ENDS = 960.0, 1200.0, 1380.0, 1620
"""Seconds at which a run becomes slow, saves for a minute, and is as fast as before."""


@dataclass(frozen=True)
class Late:
    """A run of whose four ranks rank 1 is late, so that a step takes longer."""

    run: str
    usual: float
    late: float
    """Seconds of a step before it is late, and by how many it is."""

    def ends(self) -> Iterator[tuple[float, bool]]:
        """Yield when each step ends, and whether the rank is late in it; one takes a minute longer, for a save."""
        end, saved = 0.0, False
        while end < ENDS:
            is_late = SLOW_FROM <= end < SLOW_UNTIL
            if end >= SAVES and not saved:
                saved, end = True, end + 60
            end += self.usual + (self.late if is_late else 0.0)
            yield end, is_late

    def series(self) -> Iterator[dict[str, str]]:
        """Yield what each scrape shows of the run: the last twenty steps of its ranks, what their node concludes."""
        steps = [(0.0, False), *self.ends()]
        lengths = [after - before for (before, _), (after, _) in pairwise(steps)]
        shown: dict[str, list[str]] = {}
        for now in range(0, ENDS, SCRAPE):
            made = bisect_right(steps, (now, True)) - 1
            recent = range(max(0, made - 20), made)
            step = mean(lengths[each] for each in recent) if recent else self.usual
            late = self.late * (mean(steps[each + 1][1] for each in recent) if recent else 0.0)
            of_node = {
                "world_size": RANKS, 'ranks{state="running"}': RANKS, "waiting_ranks": RANKS, "step_seconds": step,
                "wait_seconds": WAIT + late, "wait_spread_seconds": 0.01,
                'least_wait_seconds{rank="1"}': WAIT if now > SLOW_FROM + 20 else WAIT + late,  # only what has lasted
            }  # fmt: skip
            values = {f"run_{name}": float(value) for name, value in of_node.items()}
            values |= {f'rank_up{{rank="{rank}"}}': 1.0 for rank in range(RANKS)}
            values |= {
                f'train_recent_wait_seconds{{rank="{rank}"}}': WAIT + (0.0 if rank == 1 else late)
                for rank in range(RANKS)
            }
            for name, value in values.items():
                shown.setdefault(name, []).append(f"{value:.4f}")
        for name, samples in shown.items():
            family, _, own = name.partition("{")
            yield {
                "series": f'tachograph_{family}{{run="{self.run}",instance="n",{own or "}"}',
                "values": " ".join(samples),
            }


A_RUN = Late("late", 0.7, 0.55)

NUMBER = r"([\d.e+]+)"


def texts(
    promtool: Path, folder: Path, run: Late, subjects: Sequence[str], evaluation: int
) -> list[promtool_output.ActiveAlert]:
    """Return every alert of these subjects as it is every ten seconds, with its text."""
    files = [RULES / f"{subject}.yml" for subject in subjects]
    groups = [group for path in files for group in read(path)["groups"]]
    alerts = sorted({rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule})
    test: dict[str, Any] = {
        "rule_files": [str(path) for path in files],
        "evaluation_interval": f"{evaluation}s",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [{
            "interval": f"{SCRAPE}s",
            "input_series": [*run.series()],
            "alert_rule_test": [
                {"eval_time": f"{moment}s", "alertname": alert}
                for moment in range(int(SLOW_FROM) + 3, ENDS, 10) for alert in alerts
            ],
        }],
    }  # fmt: skip
    path = folder / "test.yml"
    path.write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", path],
        env=os.environ | {"GOGC": "1000", "GOMAXPROCS": "1"}, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    output = promtool_output.read((done.stdout + done.stderr).splitlines())
    assert not output.errors, output.errors[:5]
    return output.alerts


def figures(pattern: str, text: str) -> list[float]:
    """Return the numbers that a text has where the pattern has groups."""
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in {text!r}"
    return [float(each.rstrip(".")) for each in found.groups()]


def near(one: float, other: float, share: float = 0.01) -> bool:
    """Return whether two figures of a text are the same, as far as they are rounded."""
    return abs(one - other) <= share * max(abs(one), abs(other)) + 0.0006


def lost(text: str, cost: str) -> float:
    """Return the share of its speed that a text says is lost, once all of its figures agree."""
    hours = figures(rf"{NUMBER} GPU-hours an hour", cost)[0] / RANKS
    milliseconds, share, times = figures(
        rf"arrives {NUMBER} ms later than the median rank, {NUMBER} % of the step, and takes {NUMBER} × as long",
        text,
    )
    step, wait = milliseconds / share / 10, WAIT
    assert near((step - wait) / (step - wait - milliseconds / 1000), times, 0.05), text
    assert abs(share / 100 - hours) <= 0.06 / RANKS, (text, cost)  # to a tenth of a GPU-hour
    return share / 100


def check(alerts: Iterable[promtool_output.ActiveAlert], expected: Mapping[tuple[str, str], float]) -> None:
    """Check that the figures of each alert agree at every moment, and that those expected are right from the first."""
    found: dict[tuple[str, str], list[float]] = {}
    for moment in alerts:
        alert = moment.labels["alertname"]
        share = lost(moment.annotations["description"], moment.annotations["cost"])
        found.setdefault((alert, moment.labels["run"]), []).append(share)
    assert expected.keys() == found.keys()
    for key, share in expected.items():
        shares = found[key]
        assert len(shares) > 20, key
        assert shares[0] == pytest.approx(share, rel=0.12), key
        assert shares[len(shares) // 3] == pytest.approx(share, rel=0.03), key


BOTH = pytest.mark.parametrize("programs", ["bookworm", pytest.param("sid", marks=pytest.mark.slow)], indirect=True)


@pytest.mark.slow
@BOTH
def test_the_figures_of_a_late_rank_agree(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """What a late rank costs is the share that its text names, of all GPUs."""
    subjects = ("runs", "progress", "skew")
    check(texts(programs["promtool"], tmp_path, A_RUN, subjects, 5), {("StragglerRank", "late"): 0.55 / 1.25})
