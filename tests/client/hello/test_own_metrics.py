"""Metrics that a run declares itself: bounded, described, taken by `step.log`, and never in the way of training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tachograph.client.core.misuse import Misuse
from tachograph.client.hello.own_metrics import own_metrics
from tachograph.client.recorder import Recorder
from tachograph.wire import MAX_DESCRIPTION_BYTES, MAX_OWN_METRICS

LOAD = {"expert_load": "Tokens per expert, highest over mean"}


class Unnumbered:
    """Has a `__float__`, which raises."""

    def __float__(self) -> float:
        raise ValueError("no number")


def test_a_declared_metric_travels(exporter: Any, record: Callable[..., Recorder]) -> None:
    """Its description in the hello, its last value in each state; NaN too."""
    recorder = record(metrics={**LOAD, "dropped_tokens": ""})
    assert exporter.wait_for("hello")["metrics"] == {**LOAD, "dropped_tokens": ""}
    recorder.step().log(loss=2.0, expert_load=1.25, dropped_tokens=math.nan)
    frame = exporter.wait_for(where=lambda frame: "custom" in frame["metrics"])
    assert frame["metrics"]["custom"] == {"expert_load": 1.25, "dropped_tokens": "NaN"}
    assert frame["metrics"]["loss"] == 2.0
    assert frame["dropped"] == 0
    assert "notices" not in frame


def test_without_any_nothing_is_said(exporter: Any, record: Callable[..., Recorder]) -> None:
    """Frames of a run without metrics of its own are as they were."""
    record()
    assert "metrics" not in exporter.wait_for("hello")
    assert "custom" not in exporter.wait_for()["metrics"]


def test_a_validation_loss_is_in_the_catalog(exporter: Any, record: Callable[..., Recorder]) -> None:
    """tachograph_train_val_loss needs no declaration."""
    record().step().log(val_loss=2.5)
    assert exporter.wait_for(where=lambda frame: "val_loss" in frame["metrics"])["metrics"]["val_loss"] == 2.5


def test_a_value_that_raises_costs_itself(exporter: Any, record: Callable[..., Recorder]) -> None:
    """It is counted and said, and the values beside it are taken."""
    recorder = record(metrics=LOAD)
    recorder.step().log(expert_load=Unnumbered(), loss=1.0)
    frame = exporter.wait_for(where=lambda frame: "notices" in frame)
    assert frame["metrics"]["misuse_total"] == {"wrong_type": 1}
    assert frame["notices"] == ["step.log(expert_load=…) is dropped: the value is not a number"]
    assert frame["metrics"]["loss"] == 1.0


@pytest.mark.parametrize("name", ["", "Load", "9lives", "a b", "load\n", "x" * 65, "größe", 5, None, b"load", "loss"])
def test_what_is_no_name_is_refused(name: Any) -> None:
    """Names are those of Prometheus' own metrics; one of the catalog has its own row."""
    misuse = Misuse()
    assert own_metrics({name: "text", **LOAD}, misuse) == LOAD
    assert misuse.metrics() == {"misuse_total": {"wrong_type": 1}}
    assert all(text.isprintable() for text in misuse.notices())


@pytest.mark.parametrize("given", [5, "expert_load", ["expert_load"], object(), {1, 2}])
def test_what_is_no_dict_is_refused(given: Any) -> None:
    """Said once, and the recorder records."""
    misuse = Misuse()
    assert own_metrics(given, misuse) == {}
    assert misuse.metrics() == {"misuse_total": {"wrong_type": 1}}


def test_a_flood_is_bounded(exporter: Any, record: Callable[..., Recorder], caplog: pytest.LogCaptureFixture) -> None:
    """Ten thousand names and a description of a megabyte: sixteen of them, cut, in a frame that arrives."""
    flood = {f"metric_{number}": "\n" * 2**20 if number == 0 else "text" for number in range(10_000)}
    record(metrics=flood)
    hello = exporter.wait_for("hello")
    assert len(hello["metrics"]) == MAX_OWN_METRICS
    assert hello["metrics"]["metric_0"] == "?" * MAX_DESCRIPTION_BYTES
    frame = exporter.wait_for()
    assert frame["metrics"]["misuse_total"] == {"wrong_type": 10_000 - MAX_OWN_METRICS + 1}
    assert len(frame["notices"]) == len(caplog.records) == 2
