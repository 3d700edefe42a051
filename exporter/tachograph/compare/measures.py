"""The measures that two runs are compared by: one row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tachograph.catalog.rank import OWN_PHASES
from tachograph.text import humanize


class Statistic(Enum):
    """How a run is summed up: by its median sample, its mean, its largest, or its loss at each step that both made."""

    MEDIAN = "median"
    MEAN = "mean"
    LARGEST = "largest"
    PAIRED = "paired"


def _seconds(value: float | None) -> str:
    if value is None or value >= 1:
        return humanize.duration(value)
    return f"{humanize.significant(1000 * value, 3)} ms"


def _bytes(value: float | None) -> str:
    return f"{humanize.gibibytes(value)} GiB" if value is not None and value >= 2**30 else f"{humanize.short(value)}B"


def _rate(value: float | None) -> str:
    return f"{humanize.short(value)}/s"


def _percent(value: float | None) -> str:
    return humanize.percent(value, 1)


@dataclass(frozen=True)
class Measure:
    """A measure: the series it is made of, its name for `--limit` and for people, and how it is judged.

    `judged`: a change for the worse is a regression also if no limit names it. `of_step`: its change is a share of the
    first run's step time, as a millisecond more is nothing where the whole takes a second.
    """

    name: str
    title: str
    series: str
    statistic: Statistic
    shown: Callable[[float | None], str] = _seconds
    judged: bool = False
    more_is_worse: bool = True
    of_step: bool = False


STEP, WAIT, TOKENS, SAMPLES, MFU, LOSS = (
    "step_seconds", "wait_seconds", "tokens_per_second", "samples_per_second", "mfu", "loss",
)  # fmt: skip
PEAK, RESERVED, HOST = "memory_peak_bytes", "memory_reserved_bytes", "host_memory_bytes"
STEPS = "steps"
"""A fact: of how many steps a rank's file is made. What a step is worth is known up to a few of them."""
PHASE = "phase_seconds/"
"""Before the name of a phase: a series of the rank's own seconds in it, waits for collectives left out."""

TITLES = {"data": "waiting for data", "copy": "copy to the device", "other": "outside of phases"}

MEASURES = (
    Measure("step_time", "step time, typical", STEP, Statistic.MEDIAN, judged=True),
    Measure("mean_step_time", "step time, mean", STEP, Statistic.MEAN, judged=True),
    *(
        Measure(name, f"  {TITLES.get(name, name)}", PHASE + name, Statistic.MEAN, of_step=True)
        for name in OWN_PHASES
    ),
    Measure("wait", "  waiting for other ranks", WAIT, Statistic.MEAN, of_step=True),
    Measure("throughput", "tokens by rank", TOKENS, Statistic.MEDIAN, _rate, judged=True, more_is_worse=False),
    Measure("samples", "samples by rank", SAMPLES, Statistic.MEDIAN, _rate, judged=True, more_is_worse=False),
    Measure("mfu", "MFU", MFU, Statistic.MEDIAN, _percent, judged=True, more_is_worse=False),
    Measure("memory", "GPU memory, tensors' peak", PEAK, Statistic.LARGEST, _bytes, judged=True),
    Measure("reserved", "GPU memory, reserved", RESERVED, Statistic.LARGEST, _bytes, judged=True),
    Measure("host_memory", "host memory", HOST, Statistic.LARGEST, _bytes),
    Measure("loss", "loss at equal steps", LOSS, Statistic.PAIRED, humanize.significant, judged=True),
)  # fmt: skip
NAMES = tuple(measure.name for measure in MEASURES)
