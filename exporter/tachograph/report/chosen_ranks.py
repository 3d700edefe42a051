"""Which ranks a report shows one by one: whom an alert named, then those that most deserve a look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tachograph.report.asking import Asking
from tachograph.report.verdicts import Verdict

NAMED, SHOWN = 16, 24
"""Of the ranks that alerts named, and of all together: what fits a page."""

WORST = (
    ("died first", "bottomk($most, min_over_time(rank:died_first:timestamp{$run}[$window]))"),
    ("failed first", "bottomk($most, min_over_time(rank:failed_first:timestamp{$run}[$window]))"),
    ("suspected in a hang", "topk($most, max_over_time(rank:hang_suspect:behind{$run}[$window]))"),
    ("first loss that is not finite", "bottomk($most, min_over_time(rank:loss_nonfinite_step:min{$run}[$window]))"),
    ("late", "topk($most, sum_over_time(rank:lateness:ratio{$run}[$window]))"),
    ("lags most", "topk($most, avg_over_time(rank:lag_seconds:mean{$run}[$window]))"),
    ("in sight", "topk($most, count_over_time(tachograph_rank_up{$run}[$window]))"),
)
"""Why a rank is shown, and who is asked for; in this order, until the page is full."""


@dataclass(frozen=True)
class ChosenRank:
    """A rank with where it sat, and why it is shown."""

    rank: str
    instance: str
    gpu: str
    why: str


def choose(asking: Asking, verdicts: Sequence[Verdict]) -> list[ChosenRank]:
    """Return the ranks to show, the named ones first."""
    why: dict[str, str] = {}
    for verdict in verdicts:
        rank = verdict.labels.get("rank", "")
        if rank.isdecimal() and len(why) < NAMED:
            why.setdefault(rank, f"named by {verdict.alert}")
    for words, question in WORST:
        if len(why) < SHOWN:
            for rank in _ranks(asking, question):
                if len(why) < SHOWN:
                    why.setdefault(rank, words)
    if not why:
        return []
    places = {}
    listed = "|".join(why)
    for series in asking.at_end(
        'max by (rank, instance, gpu) (last_over_time(tachograph_rank_info{$run,rank=~"$ranks"}[$window]))',
        ranks=listed,
    ):
        places[series.labels["rank"]] = (series.labels.get("instance", ""), series.labels.get("gpu", ""))
    return [ChosenRank(rank, *places.get(rank, ("", "")), reason) for rank, reason in why.items()]


def _ranks(asking: Asking, question: str) -> Iterator[str]:
    found = asking.at_end(question, most=str(SHOWN))
    lowest_first = question.startswith("bottomk")
    for series in sorted(found, key=lambda series: series.value if lowest_first else -series.value):
        if series.labels.get("rank", "").isdecimal():
            yield series.labels["rank"]
