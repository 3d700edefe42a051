"""Every counter of a GPU through what drivers do to counters: rate() of it is right, and never below zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tachograph.catalog.metric import COUNTER
from tachograph.node.gpu.reading_table import ACTIVITIES, FAULTS, FIELDS, SLOW_SECONDS, Field, Value

UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
DRIVER = (580, 95, 5)
WRAP = (2**32 - 6, 4)
RELOAD = (0, 3)
"""Of these the first is not shown: the second has to confirm it."""

OneGpu = Callable[..., Any]
Key = tuple[str, ...]


def _key(value: Value) -> Key:
    return value.metric.name.removeprefix("tachograph_gpu_"), *value.labels


def _fields() -> Iterator[Field]:
    """Yield the field of each counter: of two that give the same sample, the one that comes first."""
    told = set()
    for field in FIELDS:
        meant = field.since <= DRIVER and (not field.before or field.before > DRIVER)
        if field.value.metric.kind == COUNTER and meant and _key(field.value) not in told:
            told.add(_key(field.value))
            yield field


def _increase(shown: Iterable[float]) -> float:
    """Return what Prometheus' increase() makes of samples, extrapolation aside: a fall is a reset to 0."""
    return sum(after - before if after >= before else after for before, after in pairwise(shown))


@pytest.mark.parametrize(
    ("value_type", "numbers", "grown"),
    [(UNSIGNED_INT, (*WRAP, *RELOAD), 10 + 3), (UNSIGNED_LONG_LONG, (2**40, 2**40 + 10, *RELOAD), 10 + 3)],
    ids=["32 bits", "64 bits"],
)
def test_every_field_counter_survives_a_wrap_and_a_reload(
    fake: Any, one_gpu: OneGpu, value_type: int, numbers: tuple[int, ...], grown: int
) -> None:
    """A 32-bit counter of the driver continues when it wraps; a reload of the driver is a reset, at any width."""
    fake.fail("retired_pages", 0)  # which no H100 has
    collector = one_gpu(detail=True)
    counters = [field for field in _fields() if value_type == UNSIGNED_LONG_LONG or not field.wide]
    assert len(counters) > 40
    shown: dict[Key, list[float]] = {_key(field.value): [] for field in counters}
    for turn, number in enumerate(numbers):
        for field in counters:
            few = field.value.possible is FAULTS and turn < 2  # there cannot be so many as to wrap
            fake.field(0, field.id, (5, 15)[turn] if few else number, field.scope, value_type)
        samples = collector.at(turn * SLOW_SECONDS).samples
        for key, series in shown.items():
            series.extend([samples[key]] if key in samples else [])
            assert len(series) == (turn if turn > 2 else min(turn + 1, 2))
    for field in counters:
        series = shown[_key(field.value)]
        assert min(series) >= 0
        assert _increase(series) == pytest.approx(grown * field.value.scale, rel=1e-3), (_key(field.value), series)


def test_every_activity_counter_survives_a_reboot(fake: Any, one_gpu: OneGpu) -> None:
    """GPM's counts are of 64 bits and run since the reboot: one that falls is shown as it is, at the next reading."""
    collector = one_gpu(detail=True)
    counters = [activity for activity in ACTIVITIES if activity.counted]
    shown: dict[Key, list[float]] = {_key(activity.value): [] for activity in counters}
    assert shown
    for turn, number in enumerate((0, 10**12, 10**12 + 10, *RELOAD)):
        for activity in counters:
            fake.gpm(0, activity.id, float(number))
        samples = collector.at(turn).samples
        for key, series in shown.items():
            if turn not in (0, 3):  # GPM's first sample has nothing to be compared with
                series.append(samples[key])
            else:
                assert key not in samples
    assert {key: _increase(series) for key, series in shown.items()} == dict.fromkeys(shown, 13.0)


def test_no_counter_is_left_out(fake: Any, one_gpu: OneGpu) -> None:
    """Whatever counter a fully featured GPU shows is one of those above, but for links one by one, which are alike."""
    tried = {_key(row.value) for row in (*_fields(), *(activity for activity in ACTIVITIES if activity.counted))}
    counters = {key for key in one_gpu(detail=True).at(0, 1, SLOW_SECONDS).samples if key[0].endswith("_total")}
    assert {key for key in counters - tried if not key[0].startswith("nvlink_link_")} == set()
