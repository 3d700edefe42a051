"""How far each process group has come, by PyTorch's own numbers; a real hang is in test_collectives.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.hello import groups
from tachograph.client.hello.groups import ATTEMPTS, GROUP_LIMIT, GroupProgress


def torch_that_dumps(monkeypatch: pytest.MonkeyPatch, **dumps: Any) -> None:
    """Put a torch in place whose recorder gives the dumps."""
    monkeypatch.setattr(groups, "in_use", lambda part: object())
    fake = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**dumps)))
    monkeypatch.setattr(groups, "loaded_torch", lambda: fake)


def test_a_build_without_a_recorder_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent, raising or changed: nothing is reported, and soon nothing is tried."""
    calls = []

    def dump(includeCollectives: bool) -> str:  # noqa: N803 - PyTorch's name
        calls.append(includeCollectives)
        return '{"pg_status": {"0": {"something": "else"}}}'

    for dumps in ({}, {"_dump_fr_trace_json": dump}):
        torch_that_dumps(monkeypatch, **dumps)
        progress = GroupProgress()
        assert [progress.metrics() for _ in range(ATTEMPTS + 5)] == [{}] * (ATTEMPTS + 5)
    assert len(calls) == ATTEMPTS


def test_groups_are_bounded_and_numbers_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch writes numbers as strings, -1 for none; of very many groups the first are kept."""
    status = ",".join(
        f'"{group}":{{"last_enqueued_collective":"7","last_completed_collective":"-1"}}' for group in range(100)
    )
    torch_that_dumps(
        monkeypatch,
        _dump_nccl_trace_json=lambda **_: '{"pg_status":{}}',
        _dump_fr_trace_json=lambda **_: f'{{"pg_status":{{{status}}}}}'.encode(),
    )
    metrics = GroupProgress().metrics()
    assert metrics["collective_enqueued"] == {str(group): 7 for group in range(GROUP_LIMIT)}
    assert set(metrics["collective_completed"].values()) == {0}


def test_without_distributed_nothing_is_asked() -> None:
    """No torch, or no process group: no gauges, and no failure either."""
    progress = GroupProgress()
    assert progress.metrics() == {}
    assert progress._failures == 0
