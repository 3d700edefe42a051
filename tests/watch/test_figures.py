"""The figures of a run, from the pages that an exporter showed, and the lines that say them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tachograph.attach.summary import figures_text
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.overview import RankRow
from tachograph.watch.figures import LastValues


def recorded(*pages: str, lags: Sequence[float | None] = ()) -> LastValues:
    ranks = [RankRow("r", rank, mean_lag_seconds=lag) for rank, lag in enumerate(lags)]
    record = LastValues()
    for page in pages:
        lines = "".join(f"tachograph_{line}\n" for line in page.splitlines() if line)
        record.add(ExporterPage(lines), ranks)
    return record


def rank(number: int, steps: int = 100, **more: float) -> str:
    """The page of one rank, that spent 10 s outside of start-up."""
    label = f'run="r",rank="{number}"'
    return (
        f"rank_info{{{label}}} 1\n"
        f"train_steps_total{{{label}}} {steps}\n"
        f'train_phase_seconds_total{{{label},phase="init"}} 5\n'
        f'train_phase_seconds_total{{{label},phase="forward"}} 8\n'
        f'train_phase_seconds_total{{{label},phase="data"}} 2\n'
        f'train_phase_seconds_total{{{label},phase="eval"}} 0\n'
    ) + "".join(f"{name}{{{label}}} {value}\n" for name, value in more.items())


LOST = """
train_productive_seconds_total{run="r"} 24
train_lost_seconds_total{run="r",cause="data"} 6
train_lost_seconds_total{run="r",cause="hang"} 0
"""


def test_one_rank() -> None:
    """Steps, their time by phase, throughput, MFU, memory, and what time was lost to what."""
    amounts = {"train_tokens_total": 5e6, "train_flops_total": 4e15, "rank_peak_flops": 1e15}
    memory = {"train_memory_peak_bytes": 2**31, "train_host_memory_bytes": 2**30}
    assert figures_text(recorded(rank(0, **amounts, **memory) + LOST).figures()).splitlines() == [
        "tachograph run: r: 100 steps on 1 rank, 100 ms each, pauses included, 500k tokens/s, MFU 40.0%",
        "tachograph run: where a step's time went: forward 80%, data 20%",
        "tachograph run: of the run's whole time 80% was training; lost: data 20%",
        "tachograph run: memory: 2.0 GiB of GPU tensors at most, 1.0 GiB of host memory near the end",
    ]


def test_what_was_not_measured_has_its_reason() -> None:
    text = figures_text(recorded(rank(0, train_flops_total=4e15)).figures())
    assert "not measured: MFU (the device's peak FLOP/s are not known); throughput (--tokens-per-step" in text
    assert "MFU (no FLOPs given" in figures_text(recorded(rank(0)).figures())
    assert "GPU memory (no CUDA device was used)" in text
    assert "slowest rank" not in text


def test_the_slowest_rank_is_waited_for() -> None:
    """The rank that lags most over all its steps; ranks of a few percent's difference are equally fast."""
    three, two = rank(0) + rank(1) + rank(2), rank(0) + rank(1)
    assert "slowest rank: rank 1, which the others waited 20 ms for in each step" in figures_text(
        recorded(three, lags=[0.0, 0.02, -0.005]).figures()
    )
    assert "slowest rank: none" in figures_text(recorded(two, lags=[0.0, 0.001]).figures())
    blind = figures_text(recorded(two, lags=[None, None]).figures())
    assert "not measured:" in blind
    assert "the slowest rank (no waits for collectives were seen)" in blind


def test_a_gauge_that_left_the_page_keeps_its_last_value() -> None:
    """A rank's memory is shown until it ends; its counters stay."""
    before, after = rank(0, steps=50, train_memory_peak_bytes=2**31), rank(0, steps=100)
    (figures,) = recorded(before, after).figures()
    assert (figures.steps, figures.gpu_memory) == (100, {0: 2**31})


@pytest.mark.parametrize("page", ["", 'rank_info{run="r",rank="0"} 1', rank(0, steps=0)])
def test_without_a_step_there_is_one_line(page: str) -> None:
    assert figures_text(recorded(page).figures()).count("\n") == 1
