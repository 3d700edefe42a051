"""What a node says of its ranks' memory: leaks, retries, fragments, the least room."""

from __future__ import annotations

from typing import Any

import pytest

from tachograph.catalog import index as catalog

MINUTE = 60.0
GB = 1e9


def shown(table: Any) -> dict[tuple[str, ...], float]:
    """What is said of memory, without the run's name."""
    return {
        (sample.metric.name.removeprefix("tachograph_"), *sample.labels[1:]): float(sample.value)
        for sample in table.samples()
        if sample.metric.name.startswith("tachograph_run_memory_")
    }


class Ranks:
    """Two ranks that make a step a second, and what they hold."""

    def __init__(self, table: Any, hand: Any) -> None:
        self.table, self.hand, self.seq = table, hand, 0
        self.steps = 0
        for rank in range(2):
            table.greet(rank, rank=rank, pid=10 + rank, uuid=("GPU-aaaa", "GPU-bbbb")[rank])

    def hold(self, minutes: float, *metrics: dict[str, float]) -> None:
        """Let time pass, with a frame of each rank every half minute."""
        for _ in range(round(2 * minutes)):
            self.hand.turn(MINUTE / 2)
            self.seq += 1
            self.steps += 30
            for rank, values in enumerate(metrics):
                self.table.tell(rank, self.seq, self.hand.clock.wall(), metrics={"steps_total": self.steps, **values})
            self.table.tick()

    def said(self) -> dict[tuple[str, ...], float]:
        return shown(self.table)


@pytest.fixture
def ranks(table: Any, hand: Any) -> Ranks:
    return Ranks(table, hand)


def held(reserved: float, host: float = GB) -> dict[str, float]:
    return {"memory_reserved_bytes": reserved, "host_memory_bytes": host}


def test_a_leak_is_named_with_its_slope(ranks: Ranks) -> None:
    """After half an hour of settling and one of rising: 1 MB a minute; a save's peaks change nothing."""
    for minute in range(101):
        save = 5 * GB if minute % 30 < 3 else 0.0
        ranks.hold(1, held(40 * GB + save), held(40 * GB + 1e6 * minute + save))
        if minute < 89:
            assert ("run_memory_leaking_ranks",) not in ranks.said()
    said = ranks.said()
    assert said["run_memory_leaking_ranks",] == 1
    assert said["run_memory_leak_bytes_per_second", "1", "1", "GPU-bbbb", "gpu"] == pytest.approx(1e6 / MINUTE, rel=0.2)
    assert not [key for key in said if key[0] == "run_memory_leak_bytes_per_second" and key[-1] == "host"]


def test_host_memory_leaks_together(ranks: Ranks) -> None:
    """All ranks of a node drink from the same glass: their sum, by the name of the fastest."""
    for minute in range(101):
        ranks.hold(1, held(GB, GB + 2e6 * minute), held(GB, GB + 1e6 * minute))
    said = ranks.said()
    assert said["run_memory_leaking_ranks",] == 2
    assert said["run_memory_leak_bytes_per_second", "0", "0", "GPU-aaaa", "host"] == pytest.approx(
        3e6 / MINUTE, rel=0.05
    )


@pytest.mark.parametrize(
    "grows",
    [
        lambda minute: 20 * GB if minute > 100 else GB,  # one jump that stays
        lambda minute: GB + 4.5e5 * minute,  # 9 MB in 20 minutes
        lambda minute: GB + 1e9 * min(minute, 28),  # start-up
        lambda minute: GB + 1e9 * (minute % 10),  # evaluations that give it back
        lambda minute: float("nan"),
    ],
)
def test_what_is_no_leak(ranks: Ranks, grows: Any) -> None:
    """A leak adds 10 MB in each 20 minutes of an hour."""
    for minute in range(200):
        ranks.hold(1, held(GB), held(grows(minute)))
        assert ("run_memory_leaking_ranks",) not in ranks.said(), minute


def test_a_new_process_starts_again(ranks: Ranks) -> None:
    """Its memory has to settle as that of the first one had."""
    for minute in range(80):
        ranks.hold(1, held(GB), held(GB + 1e6 * minute))
    ranks.table.greet(1, rank=1, pid=99, attempt=1, uuid="GPU-bbbb")
    ranks.seq = ranks.steps = 0
    for minute in range(60):
        ranks.hold(1, held(GB), held(GB + 1e6 * minute))
    assert ("run_memory_leaking_ranks",) not in ranks.said()


def test_retries_of_ten_minutes(ranks: Ranks) -> None:
    """Those before we were there are not counted; who has most is named for as long as he has half as many."""
    ranks.hold(1, {"memory_retries_total": 50}, {})
    assert not [key for key in ranks.said() if key[0] == "run_memory_retries"]
    ranks.hold(1, {"memory_retries_total": 54}, {"memory_retries_total": 2})
    assert ranks.said()["run_memory_retries", "0", "0", "GPU-aaaa"] == 4
    ranks.hold(1, {"memory_retries_total": 54}, {"memory_retries_total": 7})
    assert ranks.said()["run_memory_retries", "0", "0", "GPU-aaaa"] == 4
    ranks.hold(1, {"memory_retries_total": 54}, {"memory_retries_total": 9})
    assert ranks.said()["run_memory_retries", "1", "1", "GPU-bbbb"] == 9
    ranks.hold(11, {"memory_retries_total": 54}, {"memory_retries_total": 9})
    assert not [key for key in ranks.said() if key[0] == "run_memory_retries"]


def test_fragments_and_room(ranks: Ranks) -> None:
    """Shares of what the allocator holds; a fragment of no account is not shown, nor is what nobody holds."""
    ranks.hold(
        1,
        {"memory_reserved_bytes": 0, "memory_peak_bytes": 5, "memory_inactive_bytes": 5},
        {"memory_reserved_bytes": 10 * GB, "memory_peak_bytes": 9 * GB, "memory_inactive_bytes": GB},
    )
    assert ranks.said() == {("run_memory_fragmented_ratio", "1", "1", "GPU-bbbb"): 0.1, ("run_memory_peak_ratio",): 0.9}
    ranks.hold(1, {}, {"memory_reserved_bytes": 10 * GB, "memory_inactive_bytes": 0.4 * GB})
    assert ranks.said() == {}


def test_its_cost_does_not_grow_with_the_ranks() -> None:
    """Whatever is said of memory is said once for a run and a kind of memory."""
    named = [row for row in catalog.METRICS if row.name.startswith("tachograph_run_memory_")]
    assert len(named) == 5
