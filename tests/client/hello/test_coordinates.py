"""Where a rank is in the parallelism of its run: given, from a device mesh, or from Megatron-Core."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tachograph.catalog.rank import DIMENSIONS
from tachograph.client.core.misuse import Misuse
from tachograph.client.hello.coordinates import _NAMES, Coordinates
from tachograph.client.recorder import Recorder


class Mesh:
    """The used interface of a `DeviceMesh`; tests/client/torch/test_device_mesh.py uses real ones."""

    def __init__(self, names: tuple[str, ...] | None, shape: tuple[int, ...], place: tuple[int, ...] | None) -> None:
        self.mesh_dim_names, self.shape, self._place = names, shape, place

    def get_coordinate(self) -> tuple[int, ...] | None:
        return self._place

    def _get_root_mesh(self) -> Mesh:
        return self


def taken(given: object) -> tuple[dict[str, int], list[str]]:
    misuse, coordinates = Misuse(), Coordinates()
    coordinates.take(given, misuse)
    return coordinates.read(), misuse.notices()


def test_given_coordinates_travel(exporter: Any, record: Callable[..., Recorder]) -> None:
    """In the hello, by the catalog's names."""
    recorder = record(mesh={"pipeline": 3, "tp": 1})
    assert exporter.wait_for("hello")["coordinates"] == {"pp": 3, "tp": 1}
    recorder.step()
    assert exporter.wait_for()["dropped"] == 0


def test_a_model_watched_later_gives_its_mesh(exporter: Any, record: Callable[..., Recorder]) -> None:
    """A second hello says where the rank is."""

    class Model:
        def parameters(self) -> list[Any]:
            sharded = type("Sharded", (), {"device_mesh": Mesh(("dp_shard", "tp"), (4, 2), (3, 1))})
            return [object(), sharded()]

    recorder = record()
    assert "coordinates" not in exporter.wait_for("hello")
    recorder.watch(Model())
    hello = exporter.wait_for("hello", where=lambda frame: "coordinates" in frame)
    assert hello["coordinates"] == {"fsdp": 3, "tp": 1}


def test_dimensions_of_one_rank_and_unknown_ones_are_left_out() -> None:
    """They tell no rank from another."""
    assert taken(Mesh(("pp", "dp_replicate", "dp_shard", "world"), (1, 2, 4, 8), (0, 1, 3, 7)))[0] == {
        "dp": 1,
        "fsdp": 3,
    }


def test_a_run_of_one_rank_misuses_nothing() -> None:
    """A pipeline tried on one GPU has a mesh, and no coordinates; ranks that it does not tell apart are a misuse."""
    assert taken(Mesh(("pp",), (1,), (0,))) == ({}, [])
    (said,) = taken(Mesh(("stages",), (4,), (3,)))[1]
    assert "has no dimension of two or more ranks named pp, " in said


def test_a_slice_has_the_coordinates_of_its_root() -> None:
    """A pipeline stage's model lies on a slice of the mesh that the run was laid out on."""
    part = Mesh(("dp_shard",), (4,), (3,))
    part._get_root_mesh = lambda: Mesh(("pp", "dp_shard"), (2, 4), (1, 3))  # type: ignore[method-assign]
    assert taken(part)[0] == {"pp": 1, "fsdp": 3}


@pytest.mark.parametrize(
    ("given", "kept", "said"),
    [
        ({"pq": 1, "tp": 2}, {"tp": 2}, "expected one of pp, tp"),
        ({"tp": -1, "pp": 0}, {"pp": 0}, "tp"),
        ({"tp": "1"}, {}, "tp"),
        (Mesh(None, (8,), (3,)), {}, "no dimension"),
        (Mesh(("pp",), (2,), None), {}, "no dimension"),
        (17, {}, "DeviceMesh"),
        ("pp=3", {}, "DeviceMesh"),
    ],
)
def test_what_is_wrong_is_said_and_left_out(given: object, kept: dict[str, int], said: str) -> None:
    """The right word stands beside the wrong one."""
    found, notices = taken(given)
    assert found == kept
    assert len(notices) == 1
    assert said in notices[0]


def test_megatron_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as its groups exist, which are made one by one; a dimension that this version lacks is left out."""
    coordinates, state = Coordinates(), ModuleType("megatron.core.parallel_state")
    monkeypatch.setitem(sys.modules, state.__name__, state)

    def not_yet() -> int:
        raise AssertionError("tensor model parallel group is not initialized")

    state.get_tensor_model_parallel_world_size = not_yet  # type: ignore[attr-defined]
    assert coordinates.read() == {}
    for words, size, rank in (
        ("tensor_model_parallel", 8, 5),
        ("pipeline_model_parallel", 1, 0),
        ("data_parallel", 4, 2),
    ):
        setattr(state, f"get_{words}_world_size", lambda size=size: size)
        setattr(state, f"get_{words}_rank", lambda rank=rank: rank)
        assert coordinates.read()["tp"] == 5
    assert coordinates.read() == {"tp": 5, "dp": 2}


def test_every_dimension_has_its_spellings() -> None:
    """One table beside the catalog's, with the same names, none of them for two."""
    assert tuple(_NAMES) == DIMENSIONS
    spellings = [each for names in _NAMES.values() for each in names]
    assert len(spellings) == len(set(spellings))
