"""The rank table: who may speak for a rank, what state it is in, and how long it is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tachograph.node.ranks import rank_ends
from tachograph.node.ranks.frames import Bye, Event, FrameError, Peer
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.run import KEPT_EVENTS, RankEvent, latest_events
from tachograph.node.ranks.silent_ranks import MAX_SILENT


class Link:
    """Stands for a connection."""


def test_a_speaking_rank_runs(table: Any, hand: Any) -> None:
    """Connected and speaking is running: up, exactly one state, and its last frame's time by the exporter's clock."""
    table.greet(link := Link())
    for seq in range(30):
        hand.turn(1.0)
        table.tell(link, seq)
    assert table.states() == ["running"]
    assert table.shown()["rank_up", "r", "0"] == 1
    assert table.shown()["rank_heartbeat_timestamp_seconds", "r", "0"] == hand.epoch + 30


def test_a_process_shows_since_when_it_accounts_for_its_time(table: Any) -> None:
    """The start time: that of the first frame minus the seconds in it; new for another process; removed with it."""
    start = ("rank_start_timestamp_seconds", "r", "0")
    table.greet(link := Link())
    assert start not in table.shown()
    table.tell(link, 7, time=1000.0, metrics={"phase_seconds_total": {"init": 10.0, "forward": 30.5, "eval": 0.0}})
    assert table.shown()[start] == 959.5
    table.tell(link, 8, time=1100.0, metrics={"phase_seconds_total": {"init": 10.0, "forward": 60.0}})
    assert table.shown()[start] == 959.5
    table.tell(link, 1, time=2000.0, metrics={"phase_seconds_total": {"init": 2.0}})
    assert table.shown()[start] == 1998.0
    table.bye(link, Bye(v=1, outcome="finished"))
    assert start not in table.shown()


def test_silence_is_frozen_not_dead(table: Any, hand: Any) -> None:
    """A rank that is connected and silent for more than 10 s is frozen; it stays up, and one frame ends it."""
    table.greet(link := Link())
    table.tell(link, phase="backward", phase_since=99.0)
    hand.turn(10.0, table.tick)
    assert table.states() == ["running"]
    hand.turn(0.5, table.tick)
    assert table.states() == ["frozen"]
    shown = table.shown()
    assert shown["rank_up", "r", "0"] == 1
    assert shown["rank_phase_seconds", "r", "0", "backward"] == pytest.approx(11.5)
    table.heard(link)
    assert table.states() == ["running"]


def test_an_exporter_that_was_stopped_does_not_accuse_its_ranks(table: Any, hand: Any) -> None:
    """Silence while the exporter itself did not run is no silence; from then on it counts."""
    table.greet(Link())
    hand.turn(1.0, table.tick)
    hand.turn(60.0)  # no tick: SIGSTOP, or a starved machine
    table.tick()
    assert table.states() == ["running"]
    hand.turn(11.0, table.tick)
    assert table.states() == ["frozen"]


def test_end_of_file_without_bye_is_dead(table: Any, hand: Any) -> None:
    """A connection that ends without bye is a death: up 0, moment gauges gone, counters, step and times kept."""
    table.greet(link := Link())
    table.tell(link, step=7, phase="data", phase_since=99.0, progress_time=98.0,
               metrics={"loss": 1.0, "tokens_total": 5}, dropped=3)  # fmt: skip
    table.lost(link)
    shown = table.shown()
    assert table.states() == ["dead"]
    assert shown["rank_up", "r", "0"] == 0
    assert shown["train_step", "r", "0"] == 7
    assert shown["train_tokens_total", "r", "0"] == 5
    assert shown["rank_progress_timestamp_seconds", "r", "0"] == 98.0
    assert shown["exporter_client_dropped_total", "r", "0"] == 3
    assert ("train_loss", "r", "0") not in shown
    assert ("rank_phase_seconds", "r", "0", "data") not in shown


@pytest.mark.parametrize(("outcome", "up"), [("finished", 1), ("failed", 0)])
def test_bye_is_neither_dead_nor_frozen(table: Any, hand: Any, outcome: Any, up: int) -> None:
    """A bye decides the state for good: the end of file that follows it changes nothing."""
    table.greet(link := Link())
    table.bye(link, Bye(v=1, outcome=outcome, category="oom", message="CUDA out of memory"))
    assert table.lost(link) is None
    hand.turn(60.0, table.tick)
    assert table.states() == [outcome]
    assert table.shown()["rank_up", "r", "0"] == up


@pytest.mark.parametrize(
    ("bye", "ended"),
    [
        (None, ("dead", "died", "")),
        ({"outcome": "finished"}, ("finished", "finished", "")),
        ({"outcome": "finished", "exit_code": 0}, ("finished", "finished", "")),
        ({"outcome": "finished", "exit_code": 3}, ("failed", "exit_code", "exit code 3")),
        ({"outcome": "finished", "exit_code": 143}, ("failed", "terminated", "exit code 143")),
        ({"outcome": "failed", "category": "exit_code", "message": "exit code 1: no data", "exit_code": 1},
         ("failed", "exit_code", "exit code 1: no data")),
        ({"outcome": "failed", "category": "exit_code", "message": "gone", "exit_code": -11},
         ("failed", "exit_code", "exit code -11: gone")),
        ({"outcome": "failed", "category": "oom", "message": "exit code 1 after MemoryError", "exit_code": 1},
         ("failed", "oom", "oom: exit code 1 after MemoryError")),
        ({"outcome": "failed", "category": "terminated", "message": "SIGTERM"},
         ("failed", "terminated", "terminated: SIGTERM")),
        ({"outcome": "failed", "category": "my own", "message": "word"}, ("failed", "exception", "my own: word")),
    ],
)  # fmt: skip
def test_how_and_when_a_rank_ended(table: Any, hand: Any, bye: Any, ended: tuple[str, str, str]) -> None:
    """One series with the time and the reason, from the end on: an exit code other than 0 is a failure."""
    state, reason, words = ended
    table.greet(link := Link())
    table.tell(link)
    hand.turn(5.0)
    assert not [key for key in table.shown() if key[0] == "rank_ended_timestamp_seconds"]
    if bye is None:
        table.lost(link)
    else:
        table.bye(link, Bye(v=1, **bye))
    hand.turn(7.0, table.tick)
    shown = {key: value for key, value in table.shown().items() if key[0] == "rank_ended_timestamp_seconds"}
    assert shown == {("rank_ended_timestamp_seconds", "r", "0", reason): hand.epoch + 5.0}
    assert table.states() == [state]
    assert [rank.failure_reason or rank.end_note for rank in table.ranks()] == [words]
    table.greet(Link(), table.OTHER)
    assert not [key for key in table.shown() if key[0] == "rank_ended_timestamp_seconds" and key[3] == "finished"]


@pytest.mark.parametrize("bye", [None, {"outcome": "failed", "category": "oom"}])
def test_an_end_is_shown_for_two_minutes_beside_the_next_process(table: Any, hand: Any, bye: Any) -> None:
    """A restart must not hide it from a slow scrape; the end of the next process takes its place."""

    def ends() -> dict[tuple[str, ...], float]:
        return {key: value for key, value in table.shown().items() if key[0] == "rank_ended_timestamp_seconds"}

    def end(link: Link) -> None:
        if bye is None:
            table.lost(link)
        else:
            table.bye(link, Bye(v=1, **bye))

    reason = "died" if bye is None else "oom"
    shown = "rank_ended_timestamp_seconds", "r", "0", reason
    table.greet(link := Link())
    end(link)
    hand.turn(10.0, table.tick)
    table.greet(link := Link(), table.OTHER)
    hand.turn(109.0, table.tick)
    assert ends() == {shown: hand.epoch}
    assert table.shown()["rank_up", "r", "0"] == 1
    assert table.states() == ["frozen"]
    hand.turn(2.0, table.tick)
    assert ends() == {}
    end(link)
    table.greet(link := Link(), table.OTHER, attempt=2)
    assert ends() == {shown: hand.epoch + 121.0}


def test_the_exit_code_of_a_finished_rank_decides(table: Any, hand: Any) -> None:
    """A process that ends with a code other than 0 has failed, at the time of its bye, if it was said by its end."""
    table.greet(link := Link())
    table.tell(link)
    rank = table.bye(link, Bye(v=1, outcome="finished"))
    hand.turn(3.0)
    for status, decides in ((0, True), (9, True), (1 << 8, False)):
        rank_ends.exited(rank, status, decides=decides)
        assert table.states() == ["finished"]
    assert rank.end_note == "its process ended later: exit code 1"
    rank_ends.exited(rank, 1 << 8, decides=True)
    assert rank.end_note == "exit code 1"
    shown = table.shown()
    assert table.states() == ["failed"]
    assert shown["rank_up", "r", "0"] == 0
    assert shown["train_failures_total", "r", "0", "software"] == 1
    assert shown["rank_ended_timestamp_seconds", "r", "0", "exit_code"] == hand.epoch
    rank_ends.exited(rank, 1 << 8, decides=True)
    assert table.shown()["train_failures_total", "r", "0", "software"] == 1


@pytest.mark.parametrize(
    ("status", "reason", "note"),
    [
        (None, "died", ""),
        (9, "died", "signal 9 (SIGKILL), without a final message"),
        (6 | 128, "died", "signal 6 (SIGABRT), without a final message"),
        (33, "died", "signal 33, without a final message"),
        (1 << 8, "exit_code", "exit code 1, without a final message"),
        (0, "finished", "exit code 0, without a final message"),
        (15, "terminated", "signal 15 (SIGTERM), without a final message"),
        (1, "terminated", "signal 1 (SIGHUP), without a final message"),
        (2, "interrupted", "signal 2 (SIGINT), without a final message"),
        (143 << 8, "terminated", "exit code 143, without a final message"),
        (129 << 8, "terminated", "exit code 129, without a final message"),
        (130 << 8, "interrupted", "exit code 130, without a final message"),
        (137 << 8, "exit_code", "exit code 137, without a final message"),
    ],
)
def test_an_end_without_a_bye(table: Any, hand: Any, status: int | None, reason: str, note: str) -> None:
    """The process tells how it ended; an exit code is a failure, what it does not tell a death.

    Its time is that of the connection's end.
    """
    table.greet(link := Link())
    table.tell(link)
    rank = table.lost(link, unsure=True)
    assert table.states() == ["running"]
    hand.turn(0.5)
    rank_ends.gone(rank, status)
    ends = {labels[3]: at for labels, at in table.shown().items() if labels[0] == "rank_ended_timestamp_seconds"}
    assert ends == {reason: hand.epoch}
    assert rank.end_note == note
    assert table.shown()["rank_up", "r", "0"] == (reason == "finished")
    said = [labels[-1] for labels in table.shown() if labels[0] == "run_last_words_age_seconds"]
    assert reason != "died" or said == [note.partition(",")[0]]
    rank_ends.gone(rank)
    assert rank.end_reason == reason


def test_an_orderly_end_that_is_known_late(table: Any, hand: Any) -> None:
    """A rank that was taken for dead is acquitted by its exit code; one that is back, or replaced, is not touched."""
    table.greet(link := Link())
    rank = table.lost(link, unsure=True)
    rank_ends.gone(rank)
    assert table.states() == ["dead"]
    rank_ends.gone(rank, 0)
    assert table.states() == ["finished"]
    table.greet(link := Link(), table.ME)
    rank = table.lost(link, unsure=True)
    rank_ends.gone(rank)
    rank_ends.gone(rank, 143 << 8)
    assert (table.states(), rank.end_reason) == (["failed"], "terminated")
    table.greet(link := Link(), table.OTHER)
    rank = table.lost(link, unsure=True)
    table.greet(again := Link(), table.OTHER)
    rank_ends.gone(rank, 9)
    assert table.states() == ["running"]
    table.lost(again, unsure=True)
    table.greet(Link(), table.ME)
    assert table.states() == ["running"]
    assert ("rank_ended_timestamp_seconds", "r", "0", "died") in table.shown()


@pytest.mark.parametrize(("end", "seconds"), [("dead", 900), ("failed", 900), ("finished", 120)])
def test_retention(table: Any, hand: Any, end: Any, seconds: int) -> None:
    """Dead and failed ranks stay visible for 15 minutes, finished ones for 2; then nothing of the run is left."""
    table.greet(link := Link())
    table.tell(link)
    if end == "dead":
        table.lost(link)
    else:
        table.bye(link, Bye(v=1, outcome=end))
    hand.turn(seconds)
    table.tick()
    assert table.states() == [end]
    hand.turn(1.0, table.tick)
    assert [key for key in table.shown() if "r" in key[1:]] == []


def test_a_scrape_changes_nothing(table: Any, hand: Any) -> None:
    """Only ticks change the table: two scrapes in a row are equal, however much time has passed before."""
    table.greet(link := Link())
    table.tell(link, metrics={"productive_seconds_total": 1.0})
    table.lost(link)
    hand.turn(901.0)
    before = table.saved("boot"), [(rank.key, set(rank.states)) for rank in table.ranks()]
    assert table.samples() == table.samples()
    assert before == (table.saved("boot"), [(rank.key, set(rank.states)) for rank in table.ranks()])
    table.tick()
    assert not list(table.ranks())


def test_hello_tells_the_last_step(table: Any) -> None:
    """A rank that returns learns the step it was at; a new one gets None."""
    link = Link()
    assert table.greet(link).last_step is None
    table.tell(link, step=480)
    table.lost(link)
    assert table.greet(Link(), table.OTHER).last_step == 480
    assert table.states() == ["running"]


def test_the_same_process_may_reconnect(table: Any) -> None:
    """A second connection of the same process takes over at once, and the end of the old one ends no rank."""
    table.greet(old := Link())
    table.tell(old, 5, metrics={"tokens_total": 9})
    new = Link()
    assert table.greet(new).superseded is old
    assert table.lost(old) is None
    with pytest.raises(FrameError) as refusal:
        table.tell(old, 6)
    assert refusal.value.reason == "no_hello"
    table.tell(new, 6, metrics={"tokens_total": 8})
    assert table.shown()["train_tokens_total", "r", "0"] == 9, "the lineage goes on: counters do not fall"
    assert table.dropped["counter_decrease"] == 1


def test_a_living_rank_cannot_be_taken_over(table: Any) -> None:
    """Another process in the same attempt is refused while the rank lives, and welcome once it is dead."""
    table.greet(link := Link())
    with pytest.raises(FrameError, match="held by pid 4242 in attempt 0") as refusal:
        table.greet(Link(), table.OTHER)
    assert refusal.value.reason == "conflict"
    table.tell(link)
    table.lost(link)
    table.greet(Link(), table.OTHER)
    assert table.states() == ["running"]


def test_a_living_rank_of_another_container_cannot_be_taken_over(table: Any) -> None:
    """Two containers of one name, in each of which training has pid 7, do not take turns; nor does a restart wait."""
    table.greet(link := Link(), Peer(1000, 0), pid=7)
    table.tell(link, 50)
    with pytest.raises(FrameError, match="held by pid 7 in attempt 0") as refusal:
        table.greet(Link(), Peer(1000, 0), pid=7)
    assert refusal.value.reason == "conflict"
    table.greet(link, Peer(1000, 0), pid=7)  # new facts on the same connection
    table.lost(link)
    table.greet(Link(), Peer(1000, 0), pid=7)
    assert table.states() == ["running"]


def test_a_higher_attempt_replaces(table: Any) -> None:
    """A restarted rank takes the place of one that hangs on, and its counters start again; a lower one does not."""
    table.greet(old := Link(), attempt=1)
    table.tell(old, metrics={"tokens_total": 9})
    with pytest.raises(FrameError):
        table.greet(Link(), table.OTHER, attempt=0)
    new = Link()
    assert table.greet(new, table.OTHER, attempt=2).superseded is old
    table.tell(new, metrics={"tokens_total": 1})
    assert table.shown()["train_tokens_total", "r", "0"] == 1
    assert table.dropped["counter_decrease"] == 0


def test_a_sequence_that_starts_again_is_another_process(table: Any) -> None:
    """In containers all pids are alike: a state whose seq starts again resets the counters instead of being refused."""
    table.greet(link := Link(), Peer(1000, 0), pid=7)
    table.tell(link, 50, metrics={"tokens_total": 900})
    table.lost(link)
    table.greet(link := Link(), Peer(1000, 0), pid=7)
    table.tell(link, 1, metrics={"tokens_total": 4})
    assert table.shown()["train_tokens_total", "r", "0"] == 4
    assert table.dropped["counter_decrease"] == 0


def test_nothing_counted_is_shown_before_the_first_state(table: Any) -> None:
    """Between hello and state, zeros would look like counters that fell, to double when the exporter restarted."""
    table.greet(link := Link())
    known_at_hello = {"train_config_info", "train_restarts_total"}
    assert {key[0] for key in table.shown() if key[0].startswith("train_")} == known_at_hello
    table.tell(link)
    assert table.shown()["train_phase_seconds_total", "r", "0", "data"] == 0


def test_a_run_belongs_to_its_first_uid(table: Any) -> None:
    """Another uid is refused while any rank of the run is known, and only for that run."""
    table.greet(link := Link())
    with pytest.raises(FrameError, match="belongs to uid 1000, you are uid 1001") as refusal:
        table.greet(Link(), Peer(1001, 1), rank=1)
    assert refusal.value.reason == "owner"
    table.greet(Link(), Peer(1001, 1), run="theirs")
    table.bye(link, Bye(v=1, outcome="finished"))
    with pytest.raises(FrameError):
        table.greet(Link(), Peer(1001, 1))


def test_an_abandoned_run_can_be_owned_again(table: Any, hand: Any) -> None:
    """Once no rank of a run is known any more, its name is free."""
    table.greet(link := Link())
    table.lost(link)
    hand.turn(901.0, table.tick)
    table.greet(Link(), Peer(1001, 1))
    assert table.states() == ["running"]


def test_one_connection_speaks_for_one_rank(table: Any) -> None:
    """A second hello for another rank is refused; after a bye the connection is free again."""
    table.greet(link := Link())
    table.greet(link)
    with pytest.raises(FrameError, match="already speaks for rank 0 of run r"):
        table.greet(link, rank=1)
    table.bye(link, Bye(v=1, outcome="finished"))
    table.greet(link, rank=1)
    assert table.states(rank="1") == ["running"]


def test_living_ranks_push_out_dead_ones(table_of: Any, two_gpus: Any) -> None:
    """At the limit the longest ended rank makes room; where all live, the newcomer is refused and they live on."""
    table = table_of(two_gpus, ranks=2)
    table.greet(first := Link(), rank=0)
    table.greet(Link(), rank=1)
    with pytest.raises(FrameError, match="2 live ranks") as refusal:
        table.greet(Link(), rank=2)
    assert refusal.value.reason == "rank_limit"
    table.lost(first)
    table.greet(Link(), rank=2)
    assert {rank.key[1] for rank in table.ranks()} == {"1", "2"}


def test_the_only_rank_of_a_run_can_make_room_for_its_own_run(table_of: Any, two_gpus: Any) -> None:
    """Making room may empty the very run that needs it."""
    table = table_of(two_gpus, ranks=1)
    table.greet(link := Link(), rank=0)
    table.lost(link)
    table.greet(Link(), rank=1)
    assert [rank.key for rank in table.ranks()] == [("r", "1")]


def test_phase_runs_by_the_exporters_clock(table: Any, hand: Any) -> None:
    """Seconds in a phase come from the rank's two times, then from the exporter's clock; only that phase is present."""
    table.greet(link := Link())
    table.tell(link, time=5_000_000.0, phase="data", phase_since=4_999_998.0)
    hand.turn(3.0)
    assert table.shown()["rank_phase_seconds", "r", "0", "data"] == pytest.approx(5.0)
    table.tell(link, 2, time=100.0, phase="forward", phase_since=101.0)
    shown = table.shown()
    assert shown["rank_phase_seconds", "r", "0", "forward"] == 0.0
    assert ("rank_phase_seconds", "r", "0", "data") not in shown


def test_an_unknown_phase_is_counted(table: Any) -> None:
    """A phase outside the vocabulary is dropped and counted, and the frame stands."""
    table.greet(link := Link())
    table.tell(link, phase="lunch", phase_since=1.0, step=3)
    shown = table.shown()
    assert not [key for key in shown if key[0] == "rank_phase_seconds"]
    assert shown["train_step", "r", "0"] == 3
    assert table.dropped["unknown_phase"] == 1


STEP = {"step_seconds": {"schema": 3, "sum": 1.0, "count": 2, "buckets": {"-8": 2}}}
STEPS = {"step_seconds": {"schema": 3, "sum": 2.0, "count": 4, "buckets": {"-8": 4}}}


def histogram(table: Any) -> tuple[int, float] | None:
    found = [s for s in table.samples() if s.metric.name == "tachograph_train_step_seconds"]
    return (found[0].cumulative[-1], found[0].sum) if found else None


def test_step_times_survive_a_rank(table: Any, hand: Any) -> None:
    """The run's histogram never falls: not when a rank leaves, nor when its successor counts from nothing."""
    table.greet(first := Link())
    table.greet(second := Link(), table.OTHER, rank=1)
    table.tell(first, histograms=STEPS)
    table.tell(second, histograms=STEP)
    table.tell(second, 2, histograms=STEP)
    assert histogram(table) == (6, 3.0)
    table.lost(first)
    hand.turn(901.0, table.tick)
    assert histogram(table) == (6, 3.0)
    table.greet(first := Link())
    table.tell(first, histograms=STEP)
    assert histogram(table) == (8, 4.0)


def test_step_times_of_before_are_not_counted_again(table: Any) -> None:
    """A process that is far on when it is first heard was counted elsewhere: its histogram begins at 0 here."""
    table.greet(link := Link())
    table.tell(link, 70, histograms=STEP)
    assert histogram(table) == (0, 0.0)
    table.tell(link, 71, histograms=STEPS)
    assert histogram(table) == (2, 1.0)


FINE = {"step_seconds": STEP["step_seconds"] | {"fine": {"-33": 1, "-32": 1}}}
FINES = {"step_seconds": STEPS["step_seconds"] | {"fine": {"-33": 1, "-32": 3}}}


def native(table: Any) -> Mapping[int, int]:
    (found,) = (s for s in table.samples() if s.metric.name == "tachograph_train_step_seconds")
    return found.native


def test_fine_buckets_survive_a_rank(table: Any, hand: Any) -> None:
    """The native histogram never falls: not when a rank dies, leaves, is replaced, or sends again what it has sent."""
    table.greet(first := Link())
    table.greet(second := Link(), table.OTHER, rank=1)
    table.tell(first, histograms=FINES)
    table.tell(second, histograms=FINE)
    assert native(table) == {-33: 2, -32: 4}
    table.lost(second)
    table.greet(second := Link(), table.OTHER, rank=1)  # the same process, over a new connection
    table.tell(second, 2, histograms=FINE)
    assert native(table) == {-33: 2, -32: 4}
    table.tell(second, 3, histograms=FINES)
    assert native(table) == {-33: 2, -32: 6}
    table.lost(first)
    hand.turn(901.0, table.tick)
    assert native(table) == {-33: 2, -32: 6}
    table.greet(first := Link(), attempt=1, pid=7)
    table.tell(first, histograms=FINE)
    assert (native(table), histogram(table)) == ({-33: 3, -32: 7}, (10, 5.0))
    table.tell(first, 2, histograms={"step_seconds": FINE["step_seconds"] | {"fine": {"-33": 9, "-32": 0}}})
    assert native(table) == {-33: 3, -32: 7}
    assert table.dropped["counter_decrease"] == 1


def test_bad_histograms_are_counted(table: Any, hand: Any) -> None:
    """An unreadable histogram, an unknown one and one that fell are dropped under their reasons."""
    table.greet(link := Link())
    table.tell(link, 1, histograms=STEPS)
    table.tell(link, 2, histograms=STEP)
    table.tell(link, 3, histograms={"step_seconds": 1, "lunch_seconds": STEP})
    assert histogram(table) == (4, 2.0)
    assert {reason: n for reason, n in table.dropped.items() if n} == {
        "counter_decrease": 1, "bad_histogram": 1, "unknown_metric": 1,
    }  # fmt: skip


def latest(table: Any, most: int) -> list[RankEvent]:
    """Return the last events of all runs."""
    return latest_events((run for _, run in table.runs()), most)


def test_events_are_kept_once(table: Any) -> None:
    """A repeated event is known by its id within a process; another process may use the id again; the last are kept."""
    table.greet(link := Link())
    one, two = Event(id=1, kind="checkpoint_saved", time=1.0, step=4), Event(id=2, kind="loss_spike", time=2.0)
    table.tell(link, 1, events=[one])
    table.tell(link, 2, events=[one, two])
    assert [event.event.id for event in latest(table, 9)] == [2, 1]
    table.lost(link)
    table.greet(link := Link(), table.OTHER)
    table.tell(link, 1, events=[one])
    assert len(latest(table, 9)) == 3
    table.tell(link, 2, events=[Event(id=n, kind="k", time=1.0) for n in range(2, 66)])
    table.tell(link, 3, events=[Event(id=66, kind="k", time=1.0)])
    assert len(latest(table, 64)) == KEPT_EVENTS


def test_each_user_has_a_share_of_the_latest_events(table: Any) -> None:
    """However many another one reports, and however late they are said to be."""
    table.greet(mine := Link(), run="mine")
    table.tell(mine, events=[Event(id=n, kind="checkpoint_saved", time=float(n)) for n in range(4)])
    for number in range(3):
        table.greet(link := Link(), Peer(2000, number + 1), run=f"loud {number}")
        table.tell(link, events=[Event(id=n, kind="k", time=2.0**36) for n in range(64)])
    shown = [(event.run.partition(" ")[0], event.event.id) for event in latest(table, 8)]
    assert shown[:4] == [("loud", n) for n in range(48, 52)]
    assert shown[4:] == [("mine", n) for n in (3, 2, 1, 0)]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The ranks whose processes were looked at, in order."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(
        Rank, "look_at_process", lambda rank, now: (found.append(rank.key), setattr(rank, "looked", now))
    )
    return found


def test_every_users_silent_ranks_are_looked_at(table: Any, hand: Any, looked_at: list[tuple[str, str]]) -> None:
    """Sixty silent ranks of another user delay no look at mine, and each of the sixty has its turn."""
    for rank in range(60):
        table.greet(object(), Peer(666, 100 + rank), run="rude", rank=rank)
    hand.turn(5.0, table.tick)
    table.greet(object(), run="mine")
    hand.turn(12.0, table.tick)
    for _ in range(10):
        looked_at.clear()
        hand.turn(1.0, table.tick)
        assert ("mine", "0") in looked_at
        assert len(looked_at) <= MAX_SILENT
    seen = set()
    for _ in range(10):
        looked_at.clear()
        hand.turn(1.0, table.tick)
        seen |= set(looked_at)
    assert len(seen) == 61


def test_ranks_of_one_process_are_one_look(table: Any, hand: Any, looked_at: list[tuple[str, str]]) -> None:
    """They take turns, since all of them are in the same state."""
    for rank in range(8):
        table.greet(object(), run="one", rank=rank)
    hand.turn(10.0, table.tick)
    for _ in range(8):
        hand.turn(1.0, table.tick)
    assert sorted(looked_at) == [("one", str(rank)) for rank in range(8)]


def test_looks_are_charged_to_the_user(table: Any, hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that takes long leaves the user less time for the next, and for frames; others are looked at."""
    spent = [0.0]
    looks: list[int] = []

    def look(rank: Rank, now: float) -> None:
        looks.append(rank.peer.uid)
        rank.looked = now
        spent[0] += 0.5 if rank.peer.uid == 666 else 0.0

    monkeypatch.setattr(Rank, "look_at_process", look)
    monkeypatch.setattr("tachograph.node.ranks.rank_table.time.thread_time", lambda: spent[0])
    for rank in range(4):
        table.greet(object(), Peer(666, 100 + rank), run="rude", rank=rank)
    table.greet(object(), run="mine")
    hand.turn(12.0, table.tick)
    looks.clear()
    hand.turn(8.0, table.tick)
    assert looks.count(1000) == 8
    assert 2 <= looks.count(666) <= 5
    assert table.shares.of(666).wait_seconds() > 0
    assert table.shares.of(1000).wait_seconds() == 0
