"""The figures of a run, from the pages that an exporter showed, and the lines that say them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tachograph.attach.summary import NEVER, figures_text
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
        "tachograph run: r: 100 steps on 1 rank, 100 ms each, pauses included",
        "tachograph run:   speed      500k tokens/s, MFU 40.0%",
        "tachograph run:   phases     forward 80%, data 20%",
        "tachograph run:   whole time 80% was training; lost: data 20%",
        "tachograph run:   memory     2.0 GiB of GPU tensors at most, 1.0 GiB of host memory near the end",
    ]


def ordinary(number: int, wait: float | None, **phases: float) -> str:
    """The page of a rank's 80 ordinary steps, that took 8 s in all."""
    label = f'run="r",rank="{number}"'
    waits = "" if wait is None else f"train_ordinary_wait_seconds_total{{{label}}} {wait}\n"
    return (
        f"train_ordinary_steps_total{{{label}}} 80\ntrain_ordinary_step_seconds_total{{{label}}} 8\n{waits}"
        + "".join(f'train_ordinary_phase_seconds_total{{{label},phase="{each}"}} {s}\n' for each, s in phases.items())
    )  # fmt: skip


def test_own_time_and_waits_are_apart() -> None:
    """Of an ordinary step of the mean rank; saves and evaluations are besides. What is below a percent is left out."""
    page = rank(0) + ordinary(0, 1.6, forward=2.4, data=4.0) + rank(1) + ordinary(1, 3.2, forward=3.2, data=1.6)
    lines = figures_text(recorded(page).figures()).splitlines()
    assert lines[1:3] == [
        "tachograph run:   step       100 ms: own 35 ms (35%), waits for data 35 ms (35%), for other ranks 30 ms (30%)",
        "tachograph run:   own time   forward 100%",
    ]
    alone = figures_text(recorded(rank(0) + ordinary(0, None, forward=7.96, data=0.04)).figures())
    assert "  step       100 ms: own 100 ms (100%)\n" in alone
    assert "besides" not in alone
    saved = rank(0).replace('phase="eval"} 0', 'phase="checkpoint"} 10') + ordinary(0, None, forward=8.0)
    assert "  besides    checkpoint 50% of all time since start-up\n" in figures_text(recorded(saved).figures())


def test_what_is_wrong_comes_first_and_what_was_not_seen_last() -> None:
    """What the script's own summary says stands between, without what the figures say better."""
    seen = "tachograph run: recorded 9 steps: the optimizer\ntachograph run: not seen: backward (why); " + NEVER + "\n"
    lines = figures_text(recorded(rank(0)).figures(), ["the loss is NaN"], seen).splitlines()
    assert lines[0] == "tachograph run: the loss is NaN"
    assert lines[-2] == "tachograph run:   recorded   9 steps: the optimizer"
    assert lines[-1].startswith("tachograph run:   not seen   backward (why); MFU (no FLOPs given: ")
    assert NEVER not in lines[-1]
    alone = figures_text([], [], "tachograph run: the script records itself; nothing was added\n").splitlines()
    assert alone[1] == "tachograph run: the script records itself; nothing was added"


def test_what_was_not_measured_has_its_reason() -> None:
    text = figures_text(recorded(rank(0, train_flops_total=4e15)).figures())
    assert "  not seen   MFU (the device's peak FLOP/s are not known); throughput (--tokens-per-step" in text
    assert "MFU (no FLOPs given" in figures_text(recorded(rank(0)).figures())
    assert "GPU memory (no CUDA device was used)" in text
    assert "slowest" not in text


def test_the_slowest_rank_is_waited_for() -> None:
    """The rank that lags most over all its steps; ranks of a few percent's difference are equally fast."""
    three, two = rank(0) + rank(1) + rank(2), rank(0) + rank(1)
    assert "  slowest    rank 1, which the others waited 20 ms for in each step" in figures_text(
        recorded(three, lags=[0.0, 0.02, -0.005]).figures()
    )
    assert "  slowest    none" in figures_text(recorded(two, lags=[0.0, 0.001]).figures())
    blind = figures_text(recorded(two, lags=[None, None]).figures())
    assert "  not seen   " in blind
    assert "the slowest rank (no waits for collectives were seen)" in blind


def test_a_gauge_that_left_the_page_keeps_its_last_value() -> None:
    """A rank's memory is shown until it ends; its counters stay."""
    before, after = rank(0, steps=50, train_memory_peak_bytes=2**31), rank(0, steps=100)
    (figures,) = recorded(before, after).figures()
    assert (figures.steps, figures.gpu_memory) == (100, {0: 2**31})


@pytest.mark.parametrize("page", ["", 'rank_info{run="r",rank="0"} 1', rank(0, steps=0)])
def test_without_a_step_there_is_one_line(page: str) -> None:
    assert figures_text(recorded(page).figures()).count("\n") == 1
