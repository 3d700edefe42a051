"""Every shipped story at its worst moment, and what triage must say of it then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tachograph_lab.scenario import INCIDENTS, Expected, Scenario, load

RECEIVERS = ("page", "ticket", "null")
SEVERITIES = {"page": "page", "ticket": "ticket", "null": "info"}


@dataclass(frozen=True)
class Story:
    """The category and failure mode that a story has, at second `at` of it, of a run.

    By default the moment is that by which its first page must have been received, else its first ticket; the run is the
    first one. `severity` where nothing is expected.
    """

    category: str
    mode: str
    at: float = 0.0
    run: str = ""
    severity: str = "none"


NOTHING = ("none", "none")

STORIES: Mapping[str, Story] = {
    "01": Story("compute", "straggler"),
    "02": Story("data", "communication_stall"),
    "03": Story("network", "slow_collectives"),
    "04": Story("hardware", "gpu_straggler"),
    "05": Story("data", "data_stall"),
    "06": Story("learning", "loss_spike", at=750),
    "07": Story("learning", "divergence"),
    "08a": Story("learning", "divergence"),
    "08b": Story(*NOTHING, at=7200),
    "09": Story("numerical", "not_finite"),
    "10": Story("software", "rank_died"),
    "11": Story("software", "frozen"),
    "12": Story("software", "communication_stall"),
    "13a": Story("software", "ranks_differ"),
    "13b": Story("software", "ranks_differ"),
    "13c": Story("software", "ranks_differ"),
    "14": Story("hardware", "silent_corruption"),
    "15a": Story("hardware", "gpu_fault"),
    "15b": Story("hardware", "gpu_fault"),
    "15c": Story("hardware", "gpu_fault"),
    "15d": Story("hardware", "gpu_fault"),
    "15e": Story(*NOTHING, at=260),
    "16a": Story("out_of_memory", "memory_leak"),
    "16b": Story(*NOTHING, at=10800),
    "17a": Story("storage", "slow_save"),
    "17b": Story("storage", "unsaved"),
    "18": Story("out_of_memory", "restart_loop", at=1480),
    "19": Story(*NOTHING, at=1830),  # in its first save: all of its day takes 40 minutes
    "20a": Story("monitoring", "blind"),
    "20b": Story("monitoring", "blind"),
    "20c": Story("hardware", "node_down"),
    "21a": Story("none", "starting", at=200),
    "21b": Story("none", "starting", at=400),
    "21c": Story("none", "starting", at=200),
    "22a": Story("software", "rank_failed"),
    "22b": Story("software", "rank_failed"),
    "23": Story("software", "ended_early"),
    "24": Story("software", "communication_stall"),
    "25a": Story("data", "communication_stall"),
    "25b": Story("hardware", "gpu_straggler"),
    "25c": Story("data", "data_stall"),
    "25d": Story("numerical", "not_finite"),
    "25e": Story("software", "rank_died"),
    "26a": Story(*NOTHING, at=1190),
    "26b": Story(*NOTHING, at=1130),
    "27": Story("storage", "communication_stall"),
    "28": Story("data", "communication_stall"),
    "29a": Story("compute", "straggler"),
    "29b": Story("compute", "straggler"),
    "30": Story("software", "rank_died"),
    "31": Story(*NOTHING, at=1550),
    "32": Story("software", "rank_died"),
    "33": Story("software", "communication_stall"),
    "34a": Story("monitoring", "ranks_missing"),
    "34b": Story("monitoring", "blind"),
    "35a": Story("software", "rank_died"),
    "35b": Story("data", "communication_stall"),
    "35c": Story("configuration", "name_shared"),
    "35d": Story("data", "communication_stall"),
    "36": Story("storage", "unsaved"),
    "37": Story("software", "frozen"),
    "38a": Story("network", "slow_collectives"),
    "38b": Story("compute", "straggler"),
    "39a": Story("preemption", "preempted", at=1080, severity="info"),
    "39b": Story("preemption", "not_requeued"),
    "40": Story("software", "communication_stall"),
    "41a": Story("data", "communication_stall"),
    "41b": Story("hardware", "gpu_straggler"),
    "41c": Story("software", "communication_stall"),
    "42a": Story("hardware", "gpu_fault"),
    "42b": Story("hardware", "gpu_fault"),
    "42c": Story("hardware", "gpu_missing", run="b200-short"),
    "43": Story("storage", "storage_slow"),
    "44": Story("software", "rank_died"),
    "45": Story("monitoring", "scraped_twice"),
    "46": Story("monitoring", "blind"),
    "47a": Story("software", "rank_died"),
    "47b": Story("software", "rank_died"),
    "48": Story("software", "communication_stall"),
    "49": Story("none", "ended", at=570),
    "50a": Story("network", "rank_failed"),
    "50b": Story(*NOTHING, at=840),
    "50c": Story("software", "rank_left"),
    "50d": Story("data", "communication_stall"),
    "51": Story("network", "communication_stall"),
    "52": Story("compute", "decline"),
    "53": Story("numerical", "not_finite"),
    "54a": Story("data", "uneven_work"),
    "54b": Story("data", "uneven_work"),
    "55a": Story(*NOTHING, at=1020),
    "55b": Story("storage", "communication_stall"),
    "55c": Story("data", "communication_stall"),
    "55d": Story("numerical", "not_finite"),
    "56a": Story(*NOTHING, at=1590),
    "56b": Story(*NOTHING, at=1590),
    "56c": Story("network", "slow_collectives"),
    "57a": Story("software", "communication_stall"),
    "57b": Story("software", "communication_stall"),
    "57c": Story("hardware", "node_down"),
    "57d": Story("network", "rank_failed"),
    "57e": Story("hardware", "node_down"),
    "58a": Story("preemption", "killed_together"),
    "58b": Story("preemption", "suspended"),
    "59": Story("storage", "storage_slow"),
    "60": Story("compute", "straggler", at=1030),
    "61": Story("storage", "communication_stall"),
    "62a": Story("data", "communication_stall"),
    "62b": Story("data", "communication_stall"),
    "63a": Story("network", "communication_stall"),
    "63b": Story("network", "communication_stall"),
    "64": Story(*NOTHING, at=3600),
    "65a": Story("data", "communication_stall"),
    "65b": Story("software", "rank_died"),
    "65c": Story("compute", "straggler"),
    "66": Story(*NOTHING, at=1500),
    "67a": Story("configuration", "wrong_clock"),
    "67b": Story("data", "communication_stall"),
    "67c": Story("software", "rank_died"),
    "68": Story("hardware", "gpu_fault"),
    "69": Story("software", "communication_stall"),
    "70": Story("software", "rank_failed"),
    "71": Story(*NOTHING, at=900),
    "73a": Story("software", "communication_stall"),
    "73b": Story(*NOTHING, at=1500),
    "74": Story("software", "communication_stall", run="ppo/critic"),
    "75": Story("software", "communication_stall", at=2880),
    "76": Story("software", "communication_stall", at=7380),
    "77": Story("software", "communication_stall", at=3600),
}

REACH_SECONDS = 5.0
"""Seconds from the receipt of a page to the question."""


def scenario(number: str) -> Scenario:
    """Return the scenario of a story."""
    (path,) = INCIDENTS.glob(f"{number}-*.yaml")
    return load(path)


def expectation(story: Scenario) -> Expected | None:
    """Return what must be received first: a page, else a ticket, else what is sent to nobody."""
    due = sorted(story.expect, key=lambda one: (RECEIVERS.index(one.receiver), story.began(one) + story.limit(one)))
    return due[0] if due else None


def worst_moment(number: str) -> float:
    """Return the second of a story at which triage is asked."""
    story, own = scenario(number), STORIES[number].at
    if own:
        return own
    first = expectation(story)
    assert first is not None, f"story {number} expects nothing, and has no moment"
    return min(story.began(first) + story.limit(first) + REACH_SECONDS, story.lasts)
