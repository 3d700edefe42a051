"""How far each process group has come, by PyTorch's own numbers; a real hang is in test_collectives.py."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.client.core import notice
from tachograph.client.hello import groups
from tachograph.client.hello.groups import ATTEMPTS, GROUP_LIMIT, WORLD, GroupProgress
from tachograph.client.torch import recorders


class Group:
    """A process group that has entered a number of collectives; without one its backend does not count.

    `backends` is what `pg_backend_config` has; `called` what a backend calls itself, where that is another name.
    """

    def __init__(
        self, ranks: list[int], entered: int | None = 7, desc: str = "undefined", backends: str = "cpu:gloo,cuda:gloo",
        called: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.ranks, self.entered, self.group_desc, self.backends = ranks, entered, desc, backends
        self.called = called or {}

    def _get_sequence_number_for_group(self) -> int:
        if self.entered is None:
            raise RuntimeError("does not yet support sequence numbers")
        return self.entered

    def _get_backend(self, device: str) -> Any:
        named = dict(pair.split(":") for pair in self.backends.split(","))[device]
        return SimpleNamespace(name=lambda: self.called.get(named, named))


NCCL2 = {"nccl": "nccl2"}
"""What the backend `nccl` calls itself since PyTorch 2.15."""


def use(monkeypatch: pytest.MonkeyPatch, *made: Group, names: list[str] | None = None, **dumps: Any) -> None:
    """Put a torch in place with process groups, the first of which is the world, and a recorder that gives dumps."""
    named = dict(zip(made, names or map(str, range(len(made))), strict=True))
    distributed = SimpleNamespace(
        group=SimpleNamespace(WORLD=made[0] if made else None),
        get_process_group_ranks=lambda group: group.ranks,
        distributed_c10d=SimpleNamespace(
            _world=SimpleNamespace(pg_names=named, pg_backend_config={group: group.backends for group in made})
        ),
    )
    monkeypatch.setattr(groups, "in_use", lambda part: distributed)
    fake = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**dumps)), device=str)
    monkeypatch.setattr(recorders, "loaded_torch", lambda: fake)


def of_2_15(**by_recorder: dict[str, Any]) -> dict[str, Any]:
    """Return the functions that dump in a CUDA build of PyTorch 2.15, by its signatures, of such recorders."""
    empty = {"comm_lib_version": "", "nccl_comm_state": {}, "pg_config": {}, "pg_status": {}, "version": "2.10"}

    def nccl(includeCollectives: bool | None = None, onlyActive: bool | None = None) -> bytes:  # noqa: N803
        return json.dumps(empty | by_recorder.get("nccl", {})).encode()

    def fr(
        includeCollectives: bool | None = None,  # noqa: N803
        onlyActive: bool | None = None,  # noqa: N803
        backend: str = "gloo",
    ) -> bytes:
        assert includeCollectives is False, "entries cost 20 ms"
        return json.dumps(empty | by_recorder.get(backend, {})).encode()

    return {"_dump_nccl_trace_json": nccl, "_dump_fr_trace_json": fr}


def of_2_13(includeCollectives: bool | None = None, onlyActive: bool | None = None) -> bytes:  # noqa: N803
    """Dump the one recorder there was, by its signature."""
    return b"{}"


def of_a_hook(*counts: tuple[int, int], names: str = "") -> dict[str, Any]:
    """Return the dump of a hook's recorder: each group's last operation enqueued and completed, from 0, -1 for none."""
    keys = ("last_enqueued_collective", "last_completed_collective", "last_started_collective")
    made = {str(number): dict(zip(keys, (str(a), str(b), "-1"), strict=True)) for number, (a, b) in enumerate(counts)}
    known = names or "".join(map(str, range(len(counts))))
    return {"pg_config": {name: {"name": name, "desc": "", "ranks": "[0]"} for name in known}, "pg_status": made}


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
    """It numbers groups by their making; of one that was destroyed before the first look the numbers are not known."""
    status = {str(n): {"last_enqueued_collective": str(n), "last_completed_collective": str(n)} for n in range(3)}
    dump = {"_dump_fr_trace_json": lambda **_: json.dumps({"pg_status": status})}
    use(monkeypatch, Group([0, 1], 0), Group([0, 1], 2, "mesh_tp"), **dump)
    assert GroupProgress().metrics() == {
        "collective_enqueued": {WORLD: 0, "tp 0,1": 2},
        "collective_completed": {WORLD: 0},
    }


@pytest.mark.parametrize("names", [["0", "1", "2"], ["0", "a1f0", "77bc"]])
def test_numbers_stay_with_their_groups(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """A group that is destroyed keeps its number, one that has done nothing has no counts yet; names may be hashes."""
    counts = status(_0=7, _1=7, _2=7)
    counts["1"]["last_completed_collective"] = "1"
    counts["2"]["last_completed_collective"] = "2"
    first, second, third = Group([0, 1]), Group([3]), Group([1])
    progress = GroupProgress()
    use(monkeypatch, first, second, third, names=names, **of_2_15(gloo={"pg_status": counts}))
    assert progress.metrics()["collective_completed"] == {WORLD: 7, "3": 1, "1": 2}
    use(monkeypatch, first, third, names=[names[0], names[2]], **of_2_15(gloo={"pg_status": counts}))
    assert progress.metrics()["collective_completed"] == {WORLD: 7, "1": 2}
    fourth = Group([2])
    del counts["2"]
    counts["3"] = status(_3=7)["3"]
    use(monkeypatch, first, third, fourth, names=[names[0], names[2], "5"], **of_2_15(gloo={"pg_status": counts}))
    assert progress.metrics()["collective_completed"] == {WORLD: 7, "2": 7}


def test_nccl2_is_read_from_its_own_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2.15 `nccl` is `nccl2`: `_dump_nccl_trace` is there and empty; hooks count from 0, NCCL's groups alone."""
    made = (
        Group([0, 1], 9, backends="cuda:nccl", called=NCCL2),
        Group([0, 1], 3),
        Group([0, 1], 5, "mesh_tp", backends="cuda:nccl", called=NCCL2),
        Group([0], 4, "lazy", backends="cuda:nccl-lazy"),
    )
    lazy = {"pg_config": {"3": {}}, "pg_status": {"2": of_a_hook((3, 3))["pg_status"]["0"]}}
    dumps = {"gloo": {"pg_status": status(_0=3)}, "nccl2": of_a_hook((8, 8), (4, 3), names="02"), "nccl-lazy": lazy}
    use(monkeypatch, *made, **of_2_15(**dumps))
    assert GroupProgress().metrics() == {
        "collective_enqueued": {WORLD: 9, "0,1": 3, "tp 0,1": 5, "lazy 0": 4},
        "collective_completed": {WORLD: 9, "0,1": 3, "tp 0,1": 4, "lazy 0": 4},
    }


def test_legacy_nccl_on_2_15_is_read_from_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With TORCH_DIST_USE_NCCL2=0, or as `nccl-legacy`, beside a group that is nccl2's."""
    made = (
        Group([0, 1], 9, backends="cpu:gloo,cuda:nccl-legacy", called={"nccl-legacy": "nccl"}),
        Group([3], 5, backends="cuda:nccl2"),
    )
    use(monkeypatch, *made, **of_2_15(nccl={"pg_status": status(_0=9)}, nccl2=of_a_hook((4, 2))))
    assert GroupProgress().metrics()["collective_completed"] == {WORLD: 9, "3": 3}


@pytest.mark.parametrize("called", [{}, NCCL2])
def test_a_gloo_group_between_two_of_nccl(monkeypatch: pytest.MonkeyPatch, called: dict[str, str]) -> None:
    """It takes no number of NCCL's, nor its counts where they are equal; each of the three stands by itself."""
    made = [
        Group([0, 1], 9, backends="cuda:nccl", called=called),
        Group([0, 1], 5, "store"),
        Group([0, 1], 5, "mesh_tp", backends="cuda:nccl", called=called),
    ]
    nccl = {"pg_config": {"0": {}, "2": {}}, "pg_status": status(_0=9, _1=5)}
    nccl["pg_status"]["1"]["last_completed_collective"] = "4"
    dumps = {"nccl2": of_a_hook((8, 8), (4, 3), names="02")} if called else {"nccl": nccl}
    use(monkeypatch, *made, **of_2_15(gloo={"pg_status": status(_0=5)}, **dumps))
    assert GroupProgress().metrics()["collective_completed"] == {WORLD: 9, "store 0,1": 5, "tp 0,1": 4}
    use(monkeypatch, *made, **of_2_15(**dumps))
    assert GroupProgress().metrics()["collective_completed"] == {WORLD: 9, "tp 0,1": 4}


def test_a_hook_that_counts_more_than_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends, and what gloo does in a mixed group: its lead is taken off, and while that grows nothing is said."""
    group = Group([0], 0, backends="cpu:gloo,cuda:nccl", called=NCCL2)
    progress = GroupProgress()

    def completed(entered: int, enqueued: int, ended: int) -> int | None:
        group.entered = entered
        use(monkeypatch, group, **of_2_15(nccl2=of_a_hook((enqueued - 1, ended - 1))))
        found: dict[str, int] = progress.metrics().get("collective_completed", {})
        return found.get(WORLD)

    assert completed(3, 3, 0) is None  # none yet, or a backend that never says
    assert completed(4, 4, 3) == 3
    assert completed(4, 6, 4) is None  # which of the three under way are collectives?
    assert completed(9, 11, 5) is None
    assert completed(9, 11, 6) is None  # the last of the two others may be called over before its time
    assert completed(9, 11, 7) == 5
    assert completed(12, 14, 11) == 9
    assert completed(12, 15, 15) is None
    assert completed(13, 16, 14) is None
    assert completed(16, 19, 16) == 13


def test_a_hook_that_was_read_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective entered between the two looks makes a lead for one look; without one the count is the group's."""
    group, progress = Group([0], backends="cuda:nccl2"), GroupProgress()
    found = []
    for group.entered, enqueued, ended in ((5, 5, 4), (5, 6, 4), (8, 8, 5)):
        use(monkeypatch, group, **of_2_15(nccl2=of_a_hook((enqueued - 1, ended - 1))))
        found.append(progress.metrics().get("collective_completed"))
    assert found == [{WORLD: 4}, None, {WORLD: 5}]


def test_a_mixed_group_is_counted_by_its_accelerators_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose sequence number is the group's; that gloo has counted as many says nothing."""
    of_nccl = status(_0=5)
    of_nccl["0"]["last_completed_collective"] = "4"
    dumps = of_2_15(nccl={"pg_status": of_nccl}, gloo={"pg_status": status(_0=5)})
    use(monkeypatch, Group([0], 5, backends="cpu:gloo,cuda:nccl"), **dumps)
    assert GroupProgress().metrics()["collective_completed"] == {WORLD: 4}


def test_a_hook_whose_groups_are_not_all_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was gone before the first look has the first number: which group is which is not known."""
    use(monkeypatch, Group([0], 5, backends="cuda:nccl2"), **of_2_15(nccl2=of_a_hook((4, 1), (4, 4))))
    assert "collective_completed" not in GroupProgress().metrics()


def test_a_group_in_the_making_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is known before its backends are."""
    group, progress = Group([0], 5, backends=""), GroupProgress()
    use(monkeypatch, group, **of_2_15(gloo={"pg_status": status(_0=5)}))
    assert progress.metrics() == {"collective_enqueued": {WORLD: 5}}
    group.backends = "cpu:gloo"
    use(monkeypatch, group, **of_2_15(gloo={"pg_status": status(_0=5)}))
    assert progress.metrics()["collective_completed"] == {WORLD: 5}


def test_a_backend_that_does_not_name_itself_is_what_was_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another PyTorch may have no such call."""
    monkeypatch.delattr(Group, "_get_backend")
    use(monkeypatch, Group([0], 9, backends="cuda:nccl"), **of_2_15(nccl={"pg_status": status(_0=9)}))
    assert GroupProgress().metrics()["collective_completed"] == {WORLD: 9}


@pytest.mark.parametrize(
    ("group", "dumps", "said"),
    [
        (Group([0], 5, backends="cuda:nccl2"), {"_dump_fr_trace_json": of_2_13},
         "this PyTorch has no Flight Recorder of it"),
        (Group([0], 5, backends="cuda:nccl"), {}, "this PyTorch has no Flight Recorder of it"),
        (Group([0], 5, backends="cuda:nccl"), of_2_15(), "TORCH_FR_BUFFER_SIZE=2000"),
        (Group([0], 5, backends="cuda:nccl", called=NCCL2), of_2_15(), "TORCH_FR_BUFFER_SIZE=2000"),
        (Group([0], 5), of_2_15(), "TORCH_FR_BUFFER_SIZE=2000"),
        (Group([0], 5), of_2_15(gloo={"pg_status": [0]}), "cannot be read"),
        (Group([0], 5), {}, None),  # gloo before 2.9
        (Group([0], 0, backends="cuda:nccl"), of_2_15(), None),  # nothing has been entered yet
        (Group([0], 5, backends="cpu:gloo,cuda:nccl"), of_2_15(nccl={"pg_status": status(_0=5)}), None),
        (Group([0], 5, backends="cuda:fake"), of_2_15(), None),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, group: Group, dumps: Any, said: str | None
) -> None:
    """One line in the life of the process, not one per frame."""
    monkeypatch.setattr(notice, "_logged", set())
    use(monkeypatch, group, **dumps)
    progress = GroupProgress()
    for _ in range(3 * ATTEMPTS):
        progress.metrics()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (said is not None)
    if said:
        assert said in lines[0]
        words = "how many collectives on nccl" if "nccl" in group.backends else "how many"
        assert lines[0].startswith(f"tachograph: {words}")


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
