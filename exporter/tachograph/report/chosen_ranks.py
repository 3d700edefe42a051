"""The ranks that a report shows one by one: those that an alert named, then the worst of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tachograph.report.alert_episodes import AlertEpisode
from tachograph.report.queries import SectionQueries

NAMED, SHOWN = 16, 24
"""How many ranks that alerts named, and how many in all, fit a page."""

WORST = (
    ("died first", 'bottomk($most, min_over_time(rank:first_end:timestamp{$run,kind="died"}[$window]))'),
    ("failed first", 'bottomk($most, min_over_time(rank:first_end:timestamp{$run,kind!="died"}[$window]))'),
    ("suspected in a hang", "topk($most, max_over_time(rank:hang_suspect:behind{$run}[$window]))"),
    ("first loss that is not finite", "bottomk($most, min_over_time(rank:loss_nonfinite_first:step{$run}[$window]))"),
    ("often late", 'topk($most, sum_over_time(rank:late_ratio:mean{$run,rank!=""}[$window]))'),
    ("largest lag", 'topk($most, avg_over_time(rank:lag_seconds:mean{$run,rank!=""}[$window]))'),
    ("visible longest", "topk($most, count_over_time(tachograph_rank_up{$run}[$window]))"),
)
"""Why a rank is shown, and the query that finds it; in this order, until the page is full."""


@dataclass(frozen=True)
class ChosenRank:
    """A rank, its node and GPU, and why it is shown."""

    rank: str
    instance: str
    gpu: str
    why: str


def choose(queries: SectionQueries, episodes: Sequence[AlertEpisode]) -> list[ChosenRank]:
    """Return the ranks to show, those that alerts named first."""
    why: dict[str, str] = {}
    for episode in episodes:
        rank = episode.labels.get("rank", "")
        if rank.isdecimal() and len(why) < NAMED:
            why.setdefault(rank, f"named by {episode.alert}")
    for words, question in WORST:
        if len(why) < SHOWN:
            for rank in _ranks(queries, question):
                if len(why) < SHOWN:
                    why.setdefault(rank, words)
    if not why:
        return []
    places = {}
    listed = "|".join(why)
    for series in queries.at_end(
        'max by (rank, instance, gpu) (last_over_time(tachograph_rank_info{$run,rank=~"$ranks"}[$window]))',
        ranks=listed,
    ):
        places[series.labels["rank"]] = (series.labels.get("instance", ""), series.labels.get("gpu", ""))
    return [ChosenRank(rank, *places.get(rank, ("", "")), reason) for rank, reason in why.items()]


def _ranks(queries: SectionQueries, question: str) -> Iterator[str]:
    found = queries.at_end(question, most=str(SHOWN))
    lowest_first = question.startswith("bottomk")
    for series in sorted(found, key=lambda series: series.value if lowest_first else -series.value):
        if series.labels.get("rank", "").isdecimal():
            yield series.labels["rank"]
