"""The metrics of the exporter's own process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import ProcessCollector

from tachograph.node import process_samples as own
from tachograph.node.process_samples import process_samples


def test_they_are_those_of_the_client_libraries() -> None:
    """Names, kinds, texts and numbers are what prometheus_client shows of the same process."""
    expected = {
        sample.name: (family.type, family.documentation, sample.value)
        for family in ProcessCollector(registry=None).collect()
        for sample in family.samples
    }
    shown = {sample.metric.name: (sample.metric.kind, sample.metric.help, sample.value) for sample in process_samples()}
    assert _facts(shown) == _facts(expected)
    assert len(shown) == 6
    for name, (*_, value) in shown.items():
        assert value == pytest.approx(expected[name][-1], rel=0.1, abs=1), name


def test_a_system_without_proc_shows_what_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is no /proc, CPU seconds and the limit of descriptors remain, and the page does not fail."""
    monkeypatch.setattr(own, "PROC", tmp_path)
    assert {sample.metric.name for sample in process_samples()} == {"process_cpu_seconds_total", "process_max_fds"}


def _facts(shown: Mapping[str, tuple[str, str, float]]) -> dict[str, tuple[str, str]]:
    return {name: (kind, text) for name, (kind, text, _) in shown.items()}
