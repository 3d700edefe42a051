"""What an exporter showed on a real GPU, in four minutes of four runs and six examples, and of five that failed."""

from __future__ import annotations

import lzma
import math
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tachograph.catalog.run import KIND_OF_END
from tachograph_lab.replay.evaluation import evaluate
from tachograph_lab.replay.recording import Recording
from tachograph_lab.replay.scraped import Row, Target
from tachograph_lab.replay.shipped_rules import shipped

CAPTURES = Path(__file__).parents[1] / "captures"
FOUR_RUNS, FAILURES = "nvidia-h200-four-runs.pages.xz", "nvidia-h200-failures.pages.xz"
"""Scraped every 5 s on a node with one H200: `## UNIX-SECONDS` and the samples of each scrape."""

CLOCK = re.compile(r"_timestamp_seconds$|_time_seconds$")

HAPPENED = {FOUR_RUNS: {
    ("LossNotFinite", "nan"): 69.4,
    ("RankDead", "dead"): 66.6,
    ("RankFailed", "pipeline"): 112.3,
    ("RecorderMisused", "pipeline"): 112.2,
    ("RankDead", "hang"): 180.3,
}, FAILURES: {
    ("RankDead", "index"): 89.5,
    ("RankFailed", "memory"): 112.9,
}}  # fmt: skip
"""What has to fire of each, and when it happened, in seconds from the first page. The example `pipeline` was started
alone, and had its mesh of one rank called a misuse then. Of the failures, `index` was a wrong index, which ended in an
abort; `memory` asked for too much."""

POSSIBLE = {("RankFailed", "wild"), ("GpuXidRepeated", "")}
"""`wild` wrote where no memory is, and ran again 8 s later: it is told if a scrape lies between. A program that nobody
recorded had written so before, beside a healthy run: two runs with the same Xid."""

TICKET_SECONDS = 60
"""For how long a misuse has to stand."""


def concluded(rows: list[Row], now: float) -> list[Row]:
    """Return what today's exporter concludes from the ends on a page: the first of each run, of one rank each."""
    return [
        ("tachograph_run_first_end_seconds",
         {**labels, "kind": KIND_OF_END.get(labels["reason"], "failed"), "gpu": "0", "uuid": "U"}, now - value)
        for name, labels, value in rows
        if name == "tachograph_rank_ended_timestamp_seconds" and labels["reason"] != "finished"
    ]  # fmt: skip


def lost(rows: list[Row]) -> list[Row]:
    """Return what a node of today says of a loss that is not finite."""
    return [
        ("tachograph_run_loss_nonfinite_ranks", {"run": labels["run"], "when": "now"}, 1.0)
        for name, labels, value in rows
        if name == "tachograph_train_loss" and not math.isfinite(value)
    ]


def pages(name: str, every: int) -> list[tuple[float, list[Row]]]:
    """Return each `every`-th page with its time; times in it count from the first page, as a replay's clock does."""
    found: list[tuple[float, list[Row]]] = []
    texts = lzma.decompress((CAPTURES / name).read_bytes()).decode().split("## ")[1::every]
    for number, text in enumerate(texts):
        at, page = text.split("\n", 1)
        shift = float(at) - 5.0 * every * number  # also what each scrape came too late
        rows: list[Row] = [
            (one.name, one.labels, one.value - (shift if CLOCK.search(one.name) else 0.0))
            for family in text_string_to_metric_families(page)
            for one in family.samples
        ]
        if name == FOUR_RUNS:  # by an exporter of version 0.1
            rows += [*concluded(rows, 5.0 * every * number), *lost(rows)]
        found.append((float(at), rows))
    return found


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", HAPPENED)
def test_what_is_told_of_real_runs(name: str, every: int, request: pytest.FixtureRequest) -> None:
    """A NaN, two deaths by SIGKILL, a failure and a misuse; of `healthy`, compiled, with its saves, nothing.

    `hang` and `spin` stand in their GPUs for 80 and 40 s, alone in their runs: too short to be one.
    """
    target = Target("tachograph", "node-1:10024", shipped().words)
    for _, rows in (found := pages(name, every)):
        target.scrape(rows)
    interval, suite = 5.0 * every, request.node.callspec.params["programs"]
    fired: dict[tuple[str, str], float] = {}
    for one in evaluate(Recording([target], interval, interval * (len(found) - 1)), shipped(), interval, suite):
        of_gpu = one.labels["alertname"].startswith("Gpu")
        fired.setdefault((one.labels["alertname"], "" if of_gpu else one.labels.get("run", "")), one.start)
    assert fired.keys() - POSSIBLE == HAPPENED[name].keys()
    for key in fired.keys() - POSSIBLE:
        start = fired[key]
        scraped = found[round(start / interval)][0] - found[0][0]
        late = scraped - HAPPENED[name][key] - TICKET_SECONDS * (key[0] == "RecorderMisused")
        assert 0 <= late <= 2 * interval + 2, key
