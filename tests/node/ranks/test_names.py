"""New names: what one user can have Prometheus keep is limited by the hour; what is known is free."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.node.ranks import names
from tachograph.node.ranks.frames import Bye, Peer
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.names import (
    FACT_SERIES,
    MOST_RANKS,
    MOST_VALUES,
    NAMES_BURST,
    NAMES_PER_HOUR,
    RANK_SERIES,
    NewNames,
)

ME, RUDE = Peer(1000, 1), Peer(666, 2)
SCRAPE = 5.0


class Page:
    """The series of ranks that have ever been shown."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.seen: set[tuple[str, ...]] = set()

    def new(self) -> int:
        before = len(self.seen)
        self.seen |= set(self.table.shown())
        return len(self.seen) - before


@pytest.fixture
def page(table: Any) -> Page:
    made = Page(table)
    made.new()
    return made


def frame(number: int, values: int) -> dict[str, Any]:
    """Return metrics with so many values of labels that a sender invents."""
    return {"loss": 1, "invariant": {f"i{number}-{value}": 1 for value in range(values)}}


def churn(table: Any, hand: Any, page: Page, each: Any, scrapes: int) -> list[int]:
    """Return how many series are new at each scrape while something is done between them."""
    found = []
    for number in range(scrapes):
        each(number)
        hand.turn(SCRAPE, table.tick)
        found.append(page.new())
    return found


def leave_and_come(table: Any, **hello: Any) -> Any:
    """Return what makes 16 ranks finish and come back as others, each with 20 labels of its own."""
    links = [object() for _ in range(16)]

    def each(number: int) -> None:
        for place, link in enumerate(links):
            if number:
                table.bye(link, Bye(v=1, outcome="finished"))
            named = {key: value.format(number=number, place=place) for key, value in hello.items() if key == "run"}
            rank = place if "rank" not in hello else number * 16 + place
            table.greet(link, RUDE, **{"run": "same", **named}, rank=rank, **told(number))
            table.tell(link, seq=1, metrics=frame(0, 20))

    def told(number: int) -> dict[str, Any]:
        return {"facts": {"framework": f"f{number}"}, "attempt": number} if "facts" in hello else {}

    return each


@pytest.mark.parametrize("hello", [{"run": "r{number}-{place}"}, {"rank": True}, {"facts": True}], ids=str)
def test_new_names_at_each_scrape_have_a_budget(table: Any, hand: Any, page: Page, hello: dict[str, Any]) -> None:
    """Whether runs, ranks or what is said of them is new each time: after a burst no more than the budget is shown."""
    found = churn(table, hand, page, leave_and_come(table, **hello), 60)
    hours = 60 * SCRAPE / 3600
    assert sum(found) <= 2 * (NAMES_BURST + NAMES_PER_HOUR * hours)
    assert sum(found[40:]) / 20 <= 2 * NAMES_PER_HOUR * SCRAPE / 3600 + 40
    assert table.shares.over["666", "names"] > 0 or "facts" in hello


def test_new_labels_in_each_frame_have_a_budget(table: Any, hand: Any, page: Page) -> None:
    """A rank that invents values of a label keeps its other series, and those that are known."""
    link = object()
    table.greet(link, RUDE)

    def each(number: int) -> None:
        for part in range(30):
            table.tell(link, seq=number * 30 + part + 1, metrics=frame(number * 30 + part, 30))

    churn(table, hand, page, each, 40)
    assert table.shares.over["666", "names"] > 0
    assert table.dropped["series_limit"] > 0
    assert churn(table, hand, page, lambda number: each(40 + number), 1)[0] <= 2 * NAMES_PER_HOUR * SCRAPE / 3600
    assert table.shown()["train_loss", "r", "0"] == 1


def hang(table: Any) -> Any:
    """Return what makes 16 runs stand still, each at another line, or in another phase, at each scrape."""
    links = [object() for _ in range(16)]

    def each(number: int) -> None:
        for place, link in enumerate(links):
            if not number:
                table.greet(link, RUDE, run=f"r{place}")
            phase, line = ("forward", "data")[number // 20], f"train.py:{number % 20} step"
            stands = {"phase": phase, "where": line, "progress_seconds": 900 + SCRAPE * number}
            table.tell(link, seq=number + 1, step=5, **stands)

    return each


def fail(table: Any) -> Any:
    """Return what makes 16 runs fail at each scrape, each by another exception."""
    links = [object() for _ in range(16)]

    def each(number: int) -> None:
        for place, link in enumerate(links):
            table.greet(link, RUDE, run=f"r{place}")
            table.tell(link, seq=1, step=5)
            table.bye(link, Bye(v=1, outcome="failed", category="exception", message=f"E{number}: x"))

    return each


@pytest.mark.parametrize("does", [hang, fail])
def test_texts_that_become_labels_have_a_budget(
    table: Any, hand: Any, page: Page, monkeypatch: pytest.MonkeyPatch, does: Any
) -> None:
    """The line at which a rank stands still, in each of its phases, and its last words; the user has a ticket."""
    monkeypatch.setattr(names, "NAMES_BURST", 200 + 16 * (RANK_SERIES + FACT_SERIES))
    monkeypatch.setattr(names, "NAMES_PER_HOUR", 720)  # one at each scrape
    found = churn(table, hand, page, does(table), 40)
    assert 200 <= sum(found[1:]) <= 2 * (200 + 40 + 16)  # in two series, and each rank once without a text
    assert sum(found[30:]) <= 2 * 10
    assert table.shares.over["666", "names"] > 0


def test_a_rank_without_room_is_known_and_has_no_series(table: Any, hand: Any) -> None:
    """Its user's budget is spent: no series names it or its run until there is room again; others' ranks are shown."""
    for _ in range(NAMES_BURST):
        table.shares.of(666).names.spend(1)
    table.greet(link := object(), RUDE, run="new", uuid="GPU-aaaa")
    table.tell(link, step=7, metrics={"loss": 1.0})
    table.greet(mine := object(), ME, run="mine")
    table.tell(mine, metrics={"loss": 2.0})
    shown = table.shown()
    assert not any("new" in labels for labels in shown)
    assert shown["train_loss", "mine", "0"] == 2.0
    assert [rank.step for rank in table.ranks() if rank.key[0] == "new"] == [7]
    hand.turn(60.0, table.tick)
    table.tell(link, seq=2, metrics={"loss": 1.0})
    assert table.shown()["train_loss", "new", "0"] == 1.0
    assert table.shares.over["666", "names"] >= 1
    assert ("1000", "names") not in table.shares.over


@pytest.mark.parametrize(
    ("runs", "ranks", "values", "names"), [(60, 8, 30, 60), (240, 8, 30, 1), (360, 1, 10, 360)], ids=str
)
def test_busy_users_have_room(table: Any, hand: Any, runs: int, ranks: int, values: int, names: int) -> None:  # noqa: PLR0917 - pytest gives them by name
    """In an hour 60 runs of 8 ranks, a run that restarts every 15 seconds, an array of short jobs: none is refused."""
    for number in range(runs):
        links = [object() for _ in range(ranks)]
        for rank, link in enumerate(links):
            table.greet(link, ME, run=f"run-{number % names}", rank=rank, attempt=number)
            table.tell(link, seq=1, metrics=frame(0, values))
        hand.turn(3600 / runs / 2, table.tick)
        for link in links:
            table.bye(link, Bye(v=1, outcome="finished"))
        hand.turn(3600 / runs / 2)
    assert not table.shares.over


def test_a_full_node_has_room_when_its_exporter_has_been_restarted(table: Any) -> None:
    """All ranks that a user may have come at once, with a hundred labels each."""
    for rank in range(Limits().ranks):
        table.greet(link := object(), ME, rank=rank)
        metrics = {"invariant": {f"{i}": 1 for i in range(32)}, "layer_grad_norm": {f"l{i}": 1 for i in range(68)}}
        table.tell(link, metrics=metrics)
    assert ("1000", "names") not in table.shares.over


def test_what_is_remembered_is_bounded(hand: Any) -> None:
    """Known ranks and values of one user are as many as the limits say, and the oldest are forgotten first."""
    names = NewNames(lambda: hand.now)
    for number in range(MOST_RANKS + 5):
        hand.turn(3600.0)
        assert names.rank("r", number, "") is not None
    left = names._left
    assert names.rank("r", MOST_RANKS + 4, "") is not None
    assert names._left == left
    assert names.rank("r", 0, "") is not None
    assert names._left < left - RANK_SERIES
    for number in range(2 * MOST_VALUES // 500):
        hand.turn(3600.0)
        rank = names.rank("wide", number, "")
        assert rank is not None
        assert all(rank.takes("layer", f"{value}") for value in range(500))
    assert sum(map(len, names._ranks.values())) <= MOST_VALUES + 501
