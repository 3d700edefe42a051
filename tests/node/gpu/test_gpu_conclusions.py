"""What a node concludes of its GPUs: from both sides of each limit, over each window, and nothing of a healthy GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.node.clock import Clock
from tachograph.node.config import read_config
from tachograph.node.gpu.conclusions.gpu_conclusions import GpuConclusions
from tachograph.node.gpu.conclusions.pcie import replay_limit
from tachograph.node.gpu.known_gpus import KnownGpus
from tachograph.node.samples import GpuSnapshot, Sample
from tachograph.node.shown_gpus import NoGpus, ShownGpus

Key = tuple[Metric, tuple[str, ...]]
Readings = Callable[[float], Mapping[Key, float | None]]
"""What a GPU reads at a second: a metric with its own label values, and a number, or None where there is none."""

BUSY = {(catalog.GPU_UTILIZATION, ()): 0.9}


class Node:
    """GPUs whose readings are functions of the time."""

    def __init__(self, **gpus: Readings) -> None:
        self.gpus = gpus
        self.conclusions = GpuConclusions()
        self.now = 0.0

    def run(self, until: float, every: float = 1.0) -> dict[tuple[str, ...], float]:
        """Collect until a second, once in so many; return what is concluded then: GPU, family and labels."""
        while self.now < until:
            if self.conclusions.is_due(self.now):
                self.conclusions.look(GpuSnapshot(tuple(self._samples()), 0.01, self.now, True, ""), self.now)
            self.now += every
        self.now = until
        return said(self.conclusions.samples(self.now))

    def _samples(self) -> Iterator[Sample]:
        for index, (uuid, readings) in enumerate(self.gpus.items()):
            for (metric, own), value in readings(self.now).items():
                if value is not None:
                    yield Sample(metric, (str(index), uuid, *own), value)


def said(samples: Iterator[Sample]) -> dict[tuple[str, ...], float]:
    """Return samples by GPU, family and label values."""
    return {(s.labels[1], s.metric.name.removeprefix("tachograph_gpu_"), *s.labels[2:]): s.value for s in samples}


def held(reason: str, seconds: Callable[[float], float]) -> Readings:
    """Return a GPU that counts for how long its clocks were held down for a reason."""
    return lambda now: {(catalog.GPU_CLOCK_EVENT_SECONDS, (reason,)): seconds(now)}


def links(up: Callable[[float], float | None], of: float = 18.0) -> Readings:
    """Return a GPU with links, so many of which are up."""
    return lambda now: {(catalog.GPU_NVLINK_LINKS, ()): of, (catalog.GPU_NVLINK_LINKS_ACTIVE, ()): up(now)}


def nvlink_errors(error: str, per_minute: float) -> Readings:
    """Return a GPU whose links make errors at a rate."""
    return lambda now: {(catalog.GPU_NVLINK_ERRORS, (error,)): 1000 + per_minute * now / 60}


def pcie(
    lanes: float = 16,
    generation: float = 5,
    *,
    most: float = 16,
    best: float = 5,
    busy: float = 0.9,
    replays: float = 0,
) -> dict[Key, float | None]:
    """Return a PCIe link's readings."""
    return {
        (catalog.GPU_PCIE_WIDTH, ()): lanes,
        (catalog.GPU_PCIE_WIDTH_MAX, ()): most,
        (catalog.GPU_PCIE_GENERATION, ()): generation,
        (catalog.GPU_PCIE_GENERATION_MAX, ()): best,
        (catalog.GPU_UTILIZATION, ()): busy,
        (catalog.GPU_PCIE_REPLAYS, ()): replays,
    }


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("sw_thermal_slowdown", "thermal"), ("hw_thermal_slowdown", "thermal"), ("thermal", "thermal"),
        ("sw_power_cap", "power_cap"), ("hw_power_brake_slowdown", "power_brake"),
    ],
)  # fmt: skip
def test_clocks_held_down_are_a_share_of_two_minutes(reason: str, cause: str) -> None:
    """From 5 % on, and for as long as the two minutes still have some of it."""
    node = Node(
        hot=held(reason, lambda now: min(max(0.0, now - 300), 120) * 0.8), warm=held(reason, lambda now: now / 25)
    )
    assert node.run(300) == {}
    assert node.run(360) == {("hot", "slowdown_ratio", cause): pytest.approx(0.4, abs=0.04)}
    assert node.run(420) == {("hot", "slowdown_ratio", cause): pytest.approx(0.8, abs=0.04)}
    assert node.run(535) == {("hot", "slowdown_ratio", cause): pytest.approx(0.06, abs=0.04)}
    assert node.run(545) == {}


def test_other_reasons_are_no_slowdown() -> None:
    """What a GPU does by itself when it idles, or what a user asked for."""
    others = ("sync_boost", "board_limit", "low_utilization", "reliability")
    flags = ("gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting")
    node = Node(
        counts=lambda now: {(catalog.GPU_CLOCK_EVENT_SECONDS, (reason,)): now for reason in others},
        flags=lambda now: {(catalog.GPU_CLOCK_EVENT, (reason,)): 1.0 for reason in flags},
    )
    assert node.run(300) == {}


def test_two_kinds_of_heat_may_coincide() -> None:
    """The larger of both counts, not the sum."""
    node = Node(
        both=lambda now: {
            (catalog.GPU_CLOCK_EVENT_SECONDS, ("sw_thermal_slowdown",)): 0.2 * now,
            (catalog.GPU_CLOCK_EVENT_SECONDS, ("hw_thermal_slowdown",)): 0.8 * now,
        }
    )
    assert node.run(300) == {("both", "slowdown_ratio", "thermal"): pytest.approx(0.8)}


def test_a_driver_that_counts_nothing_is_judged_by_its_flags() -> None:
    """By the share of the looks that found them set; what is counted outweighs the flag."""
    heat = "sw_thermal_slowdown"
    node = Node(
        flags=lambda now: {(catalog.GPU_CLOCK_EVENT, (heat,)): float(now % 15 < 5)},
        counted=lambda now: {
            (catalog.GPU_CLOCK_EVENT, (heat,)): 1.0, (catalog.GPU_CLOCK_EVENT_SECONDS, (heat,)): 0.02 * now,
        },
    )  # fmt: skip
    assert node.run(300) == {("flags", "slowdown_ratio", "thermal"): pytest.approx(1 / 3, abs=0.05)}


def test_a_driver_that_does_not_count_any_more_is_judged_by_its_flags_again() -> None:
    """As an older one that was loaded meanwhile."""
    heat = "sw_thermal_slowdown"
    node = Node(
        older=lambda now: {
            (catalog.GPU_CLOCK_EVENT, (heat,)): 1.0,
            (catalog.GPU_CLOCK_EVENT_SECONDS, (heat,)): 0.0 if now < 200 else None,
        }
    )
    assert node.run(310) == {}
    assert node.run(330) == {("older", "slowdown_ratio", "thermal"): 1.0}


def test_a_counter_that_begins_anew_adds_no_leap() -> None:
    """As after a reload of the driver; nor do gaps, and what is not a number."""
    node = Node(
        reset=held("hw_thermal_slowdown", lambda now: 900 + 0.4 * now if now < 150 else 0.4 * (now - 150)),
        gap=lambda now: {
            (catalog.GPU_CLOCK_EVENT_SECONDS, ("thermal",)): None if 200 < now < 260 else 0.4 * now,
            (catalog.GPU_CLOCK_EVENT_SECONDS, ("sw_power_cap",)): math.nan,
        },
    )
    for second in (155, 200, 265, 300):
        found = node.run(second)
        assert all(key[1:] == ("slowdown_ratio", "thermal") for key in found)
        assert all(0.35 < share < 0.45 for share in found.values())
        assert {key[0] for key in found} == {"reset", "gap"}


def test_links_that_were_up_are_missed() -> None:
    """After two minutes, which a reset takes, and for a day; then they are taken for unwired."""
    node = Node(
        fell=links(lambda now: 18.0 if now < 100 else 17.0),
        reset=links(lambda now: 0.0 if 100 <= now < 200 else 18.0),
        bridged=links(lambda _: 18.0),
    )
    assert node.run(210) == {}
    assert node.run(230) == {("fell", "nvlink_links_down"): 1.0}
    alone = Node(fell=links(lambda now: 18.0 if now < 100 else 17.0))
    assert alone.run(86_300, every=60) == {("fell", "nvlink_links_down"): 1.0}
    assert alone.run(86_700, every=60) == {}


def test_links_are_compared_with_those_of_the_node() -> None:
    """One GPU that never had as many as the median one; bridges that join some, and parts without links, are quiet."""
    born = Node(born=links(lambda _: 16.0), a=links(lambda _: 18.0), b=links(lambda _: 18.0))
    assert born.run(10) == {("born", "nvlink_links_down"): 2.0}
    assert Node(one=links(lambda _: 17.0), two=links(lambda _: 18.0)).run(10) == {("one", "nvlink_links_down"): 1.0}
    assert Node(a=links(lambda _: 12.0), b=links(lambda _: 12.0), c=links(lambda _: 18.0)).run(10) == {}
    assert Node(pcie=links(lambda _: 0.0, of=0.0)).run(300) == {}


def test_links_that_went_with_their_gpu_are_not_down() -> None:
    """A GPU that cannot be read says nothing of its links, and is not asked what the others have."""
    node = Node(lost=links(lambda now: 18.0 if now < 100 else None), well=links(lambda _: 18.0))
    assert node.run(600) == {}


@pytest.mark.parametrize(
    ("error", "quiet", "many"),
    [("crc_flit", 5900, 6100), ("replay", 0.9, 1.1), ("recovery", 0.9, 1.1), ("effective", 0.9, 1.1),
     ("recovery_failed", 0, 0.2)],
)  # fmt: skip
def test_errors_of_links_have_a_limit_by_kind(error: str, quiet: float, many: float) -> None:
    """Over five minutes; those of a healthy link are not shown."""
    node = Node(quiet=nvlink_errors(error, quiet), many=nvlink_errors(error, many))
    assert node.run(600) == {("many", "nvlink_errors_per_second", error): pytest.approx(many / 60, rel=0.05)}


def test_a_narrow_pcie_link_is_found_also_on_an_idle_gpu() -> None:
    """Lanes do not come and go: those of two minutes count."""
    node = Node(
        narrow=lambda now: pcie(lanes=16 if now < 60 else 8, busy=0),
        flaps=lambda now: pcie(lanes=8 if now % 60 else 16),
    )
    assert node.run(170) == {}
    assert node.run(190) == {("narrow", "pcie_speed_ratio"): 0.5}


def test_a_slow_pcie_link_is_found_on_a_busy_gpu() -> None:
    """An idle one lowers its generation by itself; each is half as fast as the next."""
    node = Node(idle=lambda _: pcie(generation=1, busy=0.4), busy=lambda _: pcie(generation=3, best=5, busy=0.6))
    assert node.run(300) == {("busy", "pcie_speed_ratio"): 0.25}
    assert Node(unknown=lambda _: {(catalog.GPU_PCIE_WIDTH, ()): 4.0, **BUSY}).run(300) == {}


@pytest.mark.parametrize(("lanes", "generation"), [(4, 1), (16, 2), (16, 3), (16, 4), (16, 5), (8, 6)])
def test_replays_have_a_limit_by_lane_and_generation(lanes: float, generation: float) -> None:
    """That of DCGM; one a minute more is too many, half of one less is not."""
    limit = replay_limit(lanes, generation)
    assert limit == {(4, 1): 1, (16, 2): 5, (16, 3): 8, (16, 4): 16, (16, 5): 31, (8, 6): 31}[lanes, generation]

    def readings(per_minute: float) -> Readings:
        return lambda now: pcie(lanes, generation, most=lanes, best=generation, replays=50 + per_minute * now / 60)

    node = Node(at=readings(limit - 0.5), over=readings(limit + 1))
    assert node.run(600) == {("over", "pcie_replays_per_second"): pytest.approx((limit + 1) / 60)}


def test_an_unknown_link_may_resend_as_much_as_a_usual_one() -> None:
    """16 a minute, of 16 lanes of generation 4; of a link that has changed, the best of five minutes counts."""

    def replays(per_minute: float) -> Readings:
        return lambda now: {(catalog.GPU_PCIE_REPLAYS, ()): per_minute * now / 60}

    assert Node(few=replays(15), many=replays(17)).run(600).keys() == {("many", "pcie_replays_per_second")}
    worse = Node(worse=lambda now: pcie(4 if now > 600 else 16, 4, most=4, best=4, replays=8 * now / 60))
    assert worse.run(880) == {}
    assert worse.run(920).keys() == {("worse", "pcie_replays_per_second")}


def test_memory_is_full_once_it_is_for_a_minute() -> None:
    """At 98 %, or where 0.8 GB are left of a small one; a peak of less than a minute is none."""

    def used(now: Callable[[float], float], of: float) -> Readings:
        return lambda second: {(catalog.GPU_MEMORY_USED, ()): now(second), (catalog.GPU_MEMORY_TOTAL, ()): of}

    node = Node(
        full=used(lambda now: 79e9 if now > 100 else 70e9, 80e9),
        peaks=used(lambda now: 79e9 if now % 60 > 10 else 70e9, 80e9),
        small=used(lambda _: 15.5e9, 16.1e9),
        near=used(lambda _: 78e9, 80e9),
    )
    assert node.run(155).keys() == {("small", "memory_full_ratio")}
    found = node.run(170)
    assert found.keys() == {("small", "memory_full_ratio"), ("full", "memory_full_ratio")}
    assert found["full", "memory_full_ratio"] == 79e9 / 80e9


def test_what_is_not_read_any_more_is_not_concluded() -> None:
    """A GPU that stopped answering says nothing of now, and one is forgotten a day later."""
    node = Node(gone=lambda now: {} if now > 300 else {**held("thermal", lambda at: at)(now), **pcie(lanes=8)})
    assert node.run(300).keys() == {("gone", "slowdown_ratio", "thermal"), ("gone", "pcie_speed_ratio")}
    assert node.run(460) == {}


def clocked(hertz: Callable[[float], float], busy: float = 0.9) -> Readings:
    """Return a GPU that runs at a clock."""
    return lambda now: {
        (catalog.GPU_CLOCK, ("sm",)): hertz(now), (catalog.GPU_CLOCK, ("memory",)): 2.6e9,
        (catalog.GPU_UTILIZATION, ()): busy,
    }  # fmt: skip


def on_gpu(rank: int, uuid: str, *, run: str = "r", name: str = "H100", alive: float = 1.0) -> Sample:
    """Return the sample of a rank on a GPU."""
    return Sample(catalog.RANK_ON_GPU, (run, str(rank), str(rank), uuid, name), alive)


def test_the_slowest_gpu_of_a_run_and_those_far_behind_are_named() -> None:
    """Beside the median and how many work, by model: the clock of 30 s, of GPUs that work for the run alone."""
    node = Node(
        a=clocked(lambda _: 1980e6), b=clocked(lambda _: 1975e6), d=clocked(lambda _: 1800e6),
        c=clocked(lambda now: 1500e6 if now > 100 else 1980e6),
        idle=clocked(lambda _: 345e6, busy=0.1), nobody=clocked(lambda _: 400e6), gone=clocked(lambda _: 500e6),
        shared=clocked(lambda _: 600e6), old=clocked(lambda _: 1410e6),
    )  # fmt: skip
    ranks = [
        on_gpu(0, "a"), on_gpu(1, "b"), on_gpu(2, "c"), on_gpu(3, "d"), on_gpu(4, "idle"), on_gpu(5, "gone", alive=0.0),
        on_gpu(6, "shared"), on_gpu(6, "shared", run="s"), on_gpu(7, "old", name="A100"),
    ]  # fmt: skip

    def compared() -> dict[tuple[str, ...], float]:
        samples = node.conclusions.clocks(ranks, node.now)
        return {(s.metric.name.removeprefix("tachograph_run_"), *s.labels): s.value for s in samples}

    node.run(100)
    h100, a100 = ("r", "H100"), ("r", "A100")
    expected = {
        ("gpu_clock_hertz", *h100): 1977.5e6, ("working_gpus", *h100): 4, ("gpu_clock_hertz", *a100): 1410e6,
        ("working_gpus", *a100): 1, ("slow_gpu_clock_hertz", "r", "7", "7", "old", "A100"): 1410e6,
        ("slow_gpu_clock_hertz", "r", "3", "3", "d", "H100"): 1800e6,
    }  # fmt: skip
    assert compared() == expected
    node.run(115)
    assert 1500e6 < compared()["slow_gpu_clock_hertz", "r", "2", "2", "c", "H100"] < 1880e6
    node.run(150)
    del expected["slow_gpu_clock_hertz", "r", "3", "3", "d", "H100"]
    expected |= {
        ("gpu_clock_hertz", *h100): 1887.5e6,
        ("slow_gpu_clock_hertz", "r", "2", "2", "c", "H100"): 1500e6,
    }
    assert compared() == expected


def test_noise_names_no_other_gpu_each_time() -> None:
    """Of clocks that hardly differ, the first rank's is shown."""
    node = Node(
        a=clocked(lambda now: 1980e6 + 4e6 * (now // 30 % 2)), b=clocked(lambda now: 1984e6 - 4e6 * (now // 30 % 2))
    )
    for second in range(30, 300, 15):
        node.run(second)
        samples = node.conclusions.clocks([on_gpu(0, "a"), on_gpu(1, "b")], node.now)
        assert {s.labels[1] for s in samples if s.metric is catalog.RUN_SLOW_GPU_CLOCK} == {"0"}


def test_conclusions_from_the_driver_to_the_page(fake: Any, stepper: Callable[..., Any]) -> None:
    """What NVML counts becomes a share on /metrics and in the node's own answer, and ends with it."""
    now = 0.0
    known, collector = KnownGpus(), stepper(fake.environment())

    class Driver(NoGpus):
        """The worker's collections, without its process."""

        def snapshot(self) -> GpuSnapshot:
            """Return the last one."""
            return GpuSnapshot(tuple(known.samples()), 0.01, now, True, "")

    shown = ShownGpus(read_config(("--socket=/nowhere/rank.sock",), {}), Driver(), Clock(lambda: now, lambda: now))
    families = {catalog.GPU_SLOWDOWN, catalog.GPU_NVLINKS_DOWN, catalog.GPU_PCIE_SPEED, catalog.GPU_NVLINK_ERROR_RATE}

    def page_at(moment: float) -> dict[tuple[str, ...], float]:
        nonlocal now
        while now < moment:
            now += 5
            fake.field(6, 59, int(min(max(now, 200), 400)))  # recoveries: one a second
            if 200 < now <= 400:
                fake.field(2, 270, int((now - 200) * 1e9))  # hw_thermal_slowdown, in nanoseconds
                fake.field(5, 165, 0, scope=3)
            known.take(collector.at(now).collection)
            shown.look()
        samples = shown.samples()
        judged = shown.snapshot()
        assert judged is not None
        assert {s for s in samples if s.metric in families} == {s for s in judged.samples if s.metric in families}
        return {(s.labels[0], s.metric.name, *s.labels[2:]): s.value for s in samples if s.metric in families}

    assert page_at(200) == {}
    found = page_at(400)
    assert found == {
        ("2", catalog.GPU_SLOWDOWN.name, "thermal"): pytest.approx(1.0),
        ("5", catalog.GPU_NVLINKS_DOWN.name): 1.0,
        ("6", catalog.GPU_NVLINK_ERROR_RATE.name, "recovery"): pytest.approx(0.67, abs=0.1),
    }
    assert page_at(710).keys() == {("5", catalog.GPU_NVLINKS_DOWN.name)}
