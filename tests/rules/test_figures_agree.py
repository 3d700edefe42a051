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
SLOW_FROM, SAVES, SLOW_UNTIL, ENDS = 960.0, 1200.0, 1380.0, 1620
"""Seconds at which a run becomes slow, saves for a minute, and is as fast as before."""


@dataclass(frozen=True)
class Told:
    """A run, what it lost its speed by, and what its text must agree with itself in."""

    run: str
    usual: float
    slow: float
    counts: str = "steps"
    data: float = 0.0
    late: float = 0.0
    """Seconds of the slow step that are a wait for data, and by which rank 1 alone is late."""

    def series(self) -> Iterator[dict[str, str]]:
        """Yield what each scrape shows of the run."""
        ends, slow = [0.0], [False]
        saved = False
        while ends[-1] < ENDS:
            slow.append(SLOW_FROM <= ends[-1] < SLOW_UNTIL)
            if ends[-1] >= SAVES and not saved:
                saved, ends[-1] = True, ends[-1] + 60
            ends.append(ends[-1] + (self.slow if slow[-1] else self.usual))
        lengths = [after - before for before, after in pairwise(ends)]
        shown: dict[str, list[str]] = {}
        for now in range(0, ENDS, SCRAPE):
            steps = bisect_right(ends, now) - 1
            recent = range(max(0, steps - 20), steps)
            values = {
                "tachograph_rank_up{": 1.0,
                "tachograph_rank_info{": 1.0,
                "tachograph_train_steps_total{": float(steps),
                f"tachograph_train_{self.counts}_total{{": 700.0 * steps,
                "tachograph_rank_progress_timestamp_seconds{": ends[steps],
            }
            if self.counts == "flops":
                values["tachograph_rank_peak_flops{"] = 2000.0
            if recent:
                late = mean(slow[step + 1] for step in recent)
                values["tachograph_train_recent_step_seconds{"] = mean(lengths[step] for step in recent)
                values['tachograph_train_recent_phase_seconds{phase="data",'] = 0.01 + late * self.data
                if self.late:
                    values["tachograph_train_recent_wait_seconds{"] = 0.1 + late * self.late
            for rank in range(RANKS):
                for name, value in values.items():
                    mine = 0.1 if "wait" in name and rank == 1 else value
                    own = f'{name}run="{self.run}",rank="{rank}",instance="n"}}'
                    shown.setdefault(own, ["_"] * (now // SCRAPE)).append(f"{mine:.4f}")
            for name in ("world_size", 'ranks{state="running"}'):
                own = f'tachograph_run_{name.rstrip("}")}{"," if "{" in name else "{"}run="{self.run}",instance="n"}}'
                shown.setdefault(own, []).append(f"{RANKS}")
            if recent:
                own = f'tachograph_run_step_seconds{{run="{self.run}",instance="n"}}'
                step = values["tachograph_train_recent_step_seconds{"]
                shown.setdefault(own, ["_"] * (now // SCRAPE)).append(f"{step:.4f}")
        for one, samples in shown.items():
            yield {"series": one, "values": " ".join(samples)}


A_CAUSE = (Told("late", 0.7, 1.25, late=0.55),)

NUMBER = r"([\d.e+]+)"


def texts(
    promtool: Path, folder: Path, runs: Sequence[Told], subjects: Sequence[str], evaluation: int
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
            "input_series": [one for run in runs for one in run.series()],
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
    step, wait = milliseconds / share / 10, 0.1
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
    check(texts(programs["promtool"], tmp_path, A_CAUSE, subjects, 5), {("StragglerRank", "late"): 0.55 / 1.25})
