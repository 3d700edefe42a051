"""How far each process group has come, by PyTorch's own numbers; a real hang is in test_collectives.py."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.hello import groups
from tachograph.client.hello.groups import ATTEMPTS, GROUP_LIMIT, WORLD, GroupProgress


class Group:
    """A process group that has entered a number of collectives; without one its backend does not count."""

    def __init__(self, ranks: list[int], entered: int | None = 7, desc: str = "undefined", backends: str = "") -> None:
        self.ranks, self.entered, self.group_desc, self.backends = ranks, entered, desc, backends

    def _get_sequence_number_for_group(self) -> int:
        if self.entered is None:
            raise RuntimeError("does not yet support sequence numbers")
        return self.entered


def use(monkeypatch: pytest.MonkeyPatch, *made: Group, **dumps: Any) -> None:
    """Put a torch in place with process groups, the first of which is the world, and a recorder that gives dumps."""
    names = {group: str(number) for number, group in enumerate(made)}
    distributed = SimpleNamespace(
        group=SimpleNamespace(WORLD=made[0] if made else None),
        get_process_group_ranks=lambda group: group.ranks,
        distributed_c10d=SimpleNamespace(
            _world=SimpleNamespace(pg_names=names, pg_backend_config={group: group.backends for group in made})
        ),
    )
    monkeypatch.setattr(groups, "in_use", lambda part: distributed)
    fake = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**dumps)))
    monkeypatch.setattr(groups, "loaded_torch", lambda: fake)


def test_a_build_without_a_recorder_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent, raising or changed: what was completed is not reported, and soon not asked for."""
    calls = []

    def dump(includeCollectives: bool) -> str:  # noqa: N803 - PyTorch's name
        calls.append(includeCollectives)
        return '{"pg_status": {"0": {"something": "else"}}}'

    for dumps in ({}, {"_dump_fr_trace_json": dump}):
        use(monkeypatch, Group([0, 1]), **dumps)
        progress = GroupProgress()
        told = [progress.metrics() for _ in range(ATTEMPTS + 5)]
        assert told == [{"collective_enqueued": {WORLD: 7}}] * (ATTEMPTS + 5)
    assert len(calls) == ATTEMPTS


def test_a_build_without_sequence_numbers_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed private API costs the gauges, and nothing else."""
    asked = []
    monkeypatch.setattr(groups, "in_use", lambda part: asked.append(part) or object())
    progress = GroupProgress()
    assert [progress.metrics() for _ in range(ATTEMPTS)] == [{}] * ATTEMPTS
    assert progress._entered.failures == ATTEMPTS
    assert progress.metrics() == {}


def test_groups_are_bounded_and_numbers_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder writes numbers as strings, -1 for none; of very many groups the first are kept."""
    status = {str(n): {"last_enqueued_collective": "7", "last_completed_collective": "-1"} for n in range(100)}
    use(
        monkeypatch,
        *(Group([0, number]) for number in range(1, 101)),
        _dump_nccl_trace_json=lambda **_: '{"pg_status":{}}',
        _dump_fr_trace_json=lambda **_: json.dumps({"pg_status": status}).encode(),
    )
    metrics = GroupProgress().metrics()
    assert metrics["collective_enqueued"] == {WORLD: 7} | {f"0,{number}": 7 for number in range(2, GROUP_LIMIT + 1)}
    assert set(metrics["collective_completed"].values()) == {0}


def status(**groups: int) -> dict[str, dict[str, str]]:
    """Return a recorder's `pg_status` of groups by number, all of whose collectives are completed."""
    counts = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {number.strip("_"): dict.fromkeys(counts, str(count)) for number, count in groups.items()}


@pytest.mark.parametrize(
    ("world", "in_world", "of_gloo", "completed"),
    [
        ("cuda:nccl", 9, status(_0=3), {WORLD: 9, "0 (2)": 3, "0 (3)": 5}),
        ("cuda:nccl", 5, status(_0=5), {WORLD: 5, "0 (2)": 5, "0 (3)": 5}),
        ("cpu:gloo,cuda:nccl", 9, status(_0=2, _1=3), {WORLD: 9, "0 (2)": 3, "0 (3)": 5}),
    ],
)
def test_each_backend_numbers_its_own_groups(
    monkeypatch: pytest.MonkeyPatch, world: str, in_world: int, of_gloo: Any, completed: dict[str, int]
) -> None:
    """A gloo group between two of NCCL's, as Megatron makes them, with the dumps that an H200 gave."""
    names = {name: {"name": name, "desc": "undefined", "ranks": "[0]"} for name in ("0", "2")}
    of_nccl = {"pg_config": names, "pg_status": status(_0=in_world, _1=5)}
    gloo = Group([0], int(of_gloo[max(of_gloo)]["last_enqueued_collective"]), backends="cpu:gloo,cuda:gloo")
    use(
        monkeypatch,
        Group([0], in_world, backends=world), gloo, Group([0], 5, backends="cuda:nccl"),
        _dump_nccl_trace_json=lambda **_: json.dumps(of_nccl),
        _dump_fr_trace_json=lambda **_: json.dumps({"pg_config": {"": {"name": ""}}, "pg_status": of_gloo}),
    )  # fmt: skip
    assert GroupProgress().metrics()["collective_completed"] == completed


def test_what_the_recorder_counts_of_another_group_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It numbers groups by their making; once one is destroyed its numbers are those of others."""
    status = {str(n): {"last_enqueued_collective": str(n), "last_completed_collective": str(n)} for n in range(3)}
    dump = {"_dump_fr_trace_json": lambda **_: json.dumps({"pg_status": status})}
    use(monkeypatch, Group([0, 1], 0), Group([0, 1], 2, "mesh_tp"), **dump)
    assert GroupProgress().metrics() == {
        "collective_enqueued": {WORLD: 0, "tp 0,1": 2},
        "collective_completed": {WORLD: 0},
    }


@pytest.mark.parametrize(
    ("ranks", "desc", "label"),
    [
        ([3], "undefined", "3"),
        ([8, 0], "mesh_dp", "dp 0,8"),
        ([4, 5, 6, 7], "mesh_tp", "tp 4-7"),
        (list(range(5, 1024, 8)), "DATA_PARALLEL_GROUP", "DATA_PARALLEL_GROUP 5-1021/8"),
        ([0, 1, 5], "", "0,1,5"),
        ([*range(100), 200], "x" * 90, "x" * 24 + " 0-200#d5404f44"),
    ],
)
def test_a_group_is_known_by_its_members(
    monkeypatch: pytest.MonkeyPatch, ranks: list[int], desc: str, label: str
) -> None:
    """By every one of them alike: a number of PyTorch's is that of another group on another rank."""
    use(monkeypatch, Group([0]), Group(ranks, 5, desc))
    assert GroupProgress().metrics()["collective_enqueued"] == {WORLD: 7, label: 5}


def test_groups_of_the_same_members_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they were made; one whose backend does not count is left out, and keeps its label."""
    progress = GroupProgress()
    for _ in range(2):
        made = Group([0, 1]), Group([0, 1], 1), Group([0, 1], None), Group([0, 1], 3)
        use(monkeypatch, *made)
        assert progress.metrics()["collective_enqueued"] == {WORLD: 7, "0,1": 1, "0,1 (3)": 3}


def test_without_distributed_nothing_is_asked() -> None:
    """No torch, or no process group: no gauges, and no failure either."""
    progress = GroupProgress()
    assert progress.metrics() == {}
    assert progress._entered.failures == 0
