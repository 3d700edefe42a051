"""Which role of its run a process has: as it is told, as torchrun exports it, or as the class of a Ray actor shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace

import pytest

from tachograph.client.core.misuse import Misuse
from tachograph.client.hello.identity import Identity, discover
from tachograph.client.hello.role import ray_role
from tachograph.wire import MAX_NAME_BYTES, MAX_RUN_BYTES

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "ppo"}
"""As torch's elastic agent exports it, for a group of its own."""


def find(environment: Mapping[str, str], misuse: Misuse | None = None, **given: object) -> Identity:
    return discover(given, environment, user=lambda: "ada", misuse=misuse)


def test_without_a_word_there_is_no_role() -> None:
    """The usual run: its group goes by the run's name."""
    found = find(TORCHRUN)
    assert (found.role, found.group, found.refused) == ("", "ppo", 0)


def test_the_role_qualifies_the_run() -> None:
    """The argument before the variable, the variable before torchrun."""
    named = {**TORCHRUN, "ROLE_NAME": "trainer"}
    assert find(named).group == "ppo/trainer"
    assert find({**named, "TACHOGRAPH_ROLE": "critic"}).group == "ppo/critic"
    assert find({**named, "TACHOGRAPH_ROLE": "critic"}, role="actor").group == "ppo/actor"
    assert find({**named, "TACHOGRAPH_ROLE": ""}).group == "ppo/trainer"
    assert find({}, run="a/b", role=" critic ").group == "a/b/critic"


@pytest.mark.parametrize(
    "name", ["default", "default_role", "none", "", " ", "0", "12:", os.uname().nodename, f"{os.uname().nodename}:"]
)
def test_torchruns_role_may_be_none(name: str) -> None:
    """What it says by default, and what scripts put there as a prefix of the log: a node's name or number."""
    assert find({**TORCHRUN, "ROLE_NAME": name}).role == ""


@pytest.mark.parametrize(
    "other",
    [
        {"ROLE_WORLD_SIZE": "1"},
        {"ROLE_WORLD_SIZE": "2", "WORLD_SIZE": "4"},
        {"ROLE_WORLD_SIZE": ""},
        {"WORLD_SIZE": ""},
    ],
)
def test_a_role_that_not_all_ranks_share_is_none(other: dict[str, str]) -> None:
    """Ranks of one rendezvous are numbered through, whatever their roles: they are one group."""
    environment = {**TORCHRUN, "ROLE_NAME": "node1", **other}
    assert find({name: value for name, value in environment.items() if value}).role == ""


def test_another_programs_role_is_none() -> None:
    """A variable of that name alone is not torchrun's."""
    assert find({"ROLE_NAME": "arn:aws:iam::123456789012:role/train"}).role == ""


@pytest.mark.parametrize("role", ["a/b", "a\nb", "\x1b[0m", "r" * (MAX_NAME_BYTES + 1), 7, b"critic", object()])
def test_what_is_no_role_is_left_out_and_said_once(role: object) -> None:
    """With the rule, and what was given; the next source counts."""
    misuse = Misuse()
    found = find({"TACHOGRAPH_ROLE": "critic"}, misuse, role=role)
    assert (found.role, found.refused) == ("critic", 1)
    [notice] = misuse.notices()
    assert notice.startswith("role is ignored: a role is printable text of 1 to 128 bytes (191 with the run) without a")


def test_run_and_role_fit_into_a_label_together() -> None:
    """With room for the name of an owner."""
    room = MAX_RUN_BYTES - MAX_NAME_BYTES - 1
    run = "r" * MAX_NAME_BYTES
    assert find({}, run=run, role="c" * room).role == "c" * room
    assert find({}, run=run, role="c" * (room + 1)).role == ""


class Class:
    """As Ray derives one from the class of an actor, by whose name it then goes."""


def actor(*names: str, **values: object) -> object:
    """An instance of a class of these names, the derived one first."""
    kind: type = Class
    for name in reversed(names):
        kind = type(name, (kind,), {})
    one = kind()
    vars(one).update(values)
    return one


@pytest.mark.parametrize(
    ("actors", "role"),
    [
        ([actor("PolicyModelActor", "BaseModelActor")], "actor"),
        ([actor("CriticModelActor", "BaseModelActor")], "critic"),
        ([actor("MyCritic", "CriticModelActor")], "critic"),
        ([actor("RewardModelActor")], "reward"),
        ([actor("ReferenceModelActor")], "reference"),
        ([actor("AsyncActorRolloutRefWorker", "ActorRolloutRefWorker", "Worker")], "actor"),
        ([actor("DTensorPolicyWorkerV2", "DTensorPolicyWorkerV2Impl")], "actor"),
        ([actor("MegatronPolicyWorker")], "actor"),
        ([actor("WorkerDict", worker_dict={"critic": object()})], "critic"),
        ([actor("WorkerDict", worker_dict={"actor_rollout": object(), "ref": object()})], "actor"),
        ([actor("WorkerDict", worker_dict={"actor_rollout": object(), "critic": object()})], None),
        ([actor("RayTrainWorker")], None),
        ([actor("CriticModelActor"), actor("PolicyModelActor")], None),
        ([object()], None),
        ([], None),
    ],
)
def test_a_ray_actor_is_known_by_its_class(
    actors: list[object], role: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of OpenRLHF, verl and NeMo-RL; two that train in one process are no role, and any other is none."""
    worker = ModuleType("ray._private.worker")
    worker.global_worker = SimpleNamespace(actors=dict(enumerate(actors)))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    assert ray_role() == role
    assert find({}, run="ppo").role == (role or "")
    assert find({"TACHOGRAPH_ROLE": "mine"}, run="ppo").role == "mine"


@pytest.mark.parametrize("worker", [ModuleType("ray"), SimpleNamespace(global_worker=None), None, 7])
def test_a_ray_of_another_shape_is_no_fault(worker: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its private names may be others by now."""
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    assert ray_role() is None
