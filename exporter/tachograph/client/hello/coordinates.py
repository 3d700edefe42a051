"""A rank's coordinates in the parallel groups of its run: which pipeline stage, which part of a tensor, which replica.

Sources, the first with an answer counts: `Recorder(mesh=…)`, the device mesh of a watched model's sharded parameters,
the process group of a model that DDP or FSDP spreads over all of the run, and the parallel state of Megatron-Core. A
dimension of one rank is left out: it distinguishes nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from tachograph.catalog.rank import DIMENSIONS
from tachograph.client.core.arguments import LARGEST, name, whole
from tachograph.client.core.misuse import Misuse
from tachograph.client.core.notice import shown

_NAMES: Mapping[str, tuple[str, ...]] = {
    "pp": ("pp", "pipe", "pipeline", "pipeline_parallel"),
    "tp": ("tp", "tensor", "tensor_parallel"),
    "cp": ("cp", "context", "context_parallel"),
    "ep": ("ep", "expert", "expert_parallel"),
    "dp": ("dp", "ddp", "data", "data_parallel", "replicate", "dp_replicate"),
    "fsdp": ("fsdp", "shard", "dp_shard"),
}
"""The usual names of a device mesh's dimensions, in lower case."""
_DIMENSION = {spelling: dimension for dimension, spellings in _NAMES.items() for spelling in spellings}

_MEGATRON = "megatron.core.parallel_state"
_MEGATRON_WORDS = {
    "pp": "pipeline_model_parallel",
    "tp": "tensor_model_parallel",
    "cp": "context_parallel",
    "ep": "expert_model_parallel",
    "dp": "data_parallel",
}

_USE = "mesh"


class Coordinates:
    """The coordinates known so far; the training thread gives a mesh or a model, the sender thread reads."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def take(self, given: object, misuse: Misuse) -> None:
        """Take the argument `mesh` of a recorder: coordinates by dimension, or a `DeviceMesh`. Never raises."""
        if given is None:
            return
        try:
            if issubclass(type(given), dict):
                self._known = _given(cast("dict[object, object]", given), misuse)
            else:
                self._known = of_mesh(given)
                if not self._known and max(cast("Any", given).shape) > 1:  # a run of one rank has nothing to tell apart
                    misuse.note("wrong_type", _USE, f"has no dimension of two or more ranks named {', '.join(_NAMES)}")
        except Exception:  # noqa: BLE001 - a user's object in the place of a mesh
            misuse.note("wrong_type", _USE, f"cannot be {shown(given)}: expected a DeviceMesh, or a dict of numbers")

    def find(self, model: Any) -> None:  # noqa: ANN401 - a torch module, or whatever was taken for one
        """Take them from the model's first parameter on a device mesh, or its process group, unless they were given."""
        if self._known:
            return
        with suppress(Exception):  # not a module, or a mesh of another version
            self._known = _of_model(model)

    def read(self) -> dict[str, int]:
        """Return them by dimension; empty while nothing is known.

        Megatron is asked each time: it makes its groups one after the other, perhaps right now.
        """
        if not self._known and _MEGATRON in sys.modules:
            return _of_megatron(sys.modules[_MEGATRON])
        return self._known


def _of_model(model: Any) -> dict[str, int]:  # noqa: ANN401 - a torch module
    """Return what its first parameter on a mesh tells, else its place in a group that is all of the run."""
    meshes = (getattr(parameter, "device_mesh", None) for parameter in model.parameters())
    mesh = next((mesh for mesh in meshes if mesh is not None), None)
    if mesh is None:  # FSDP1 and DDP have such a group
        return _in_whole_run("fsdp" if hasattr(model, "sharding_strategy") else "dp", model.process_group)
    if mesh.mesh_dim_names is None and hasattr(model, "unshard"):  # the mesh that `fully_shard` makes
        return _in_whole_run("fsdp", mesh.get_group())
    return of_mesh(mesh)


def _in_whole_run(dimension: str, group: Any) -> dict[str, int]:  # noqa: ANN401 - a process group
    """Return this rank's number in a group, if that is all of the run: nothing else distinguishes its ranks."""
    world = sys.modules["torch.distributed"].get_world_size()
    return {dimension: group.rank()} if group.size() == world > 1 else {}


def of_mesh(mesh: Any) -> dict[str, int]:  # noqa: ANN401 - torch's DeviceMesh
    """Return a device mesh's coordinates of this process; those of its root mesh too, where this is a slice of one."""
    found: dict[str, int] = {}
    for each in (_root(mesh), mesh):
        place = each.get_coordinate()
        if place is None or each.mesh_dim_names is None:
            continue
        for spelling, size, number in zip(each.mesh_dim_names, each.shape, place, strict=True):
            dimension = _DIMENSION.get(spelling.lower())
            if dimension is not None and size > 1:
                found.setdefault(dimension, int(number))
    return found


def _root(mesh: Any) -> Any:  # noqa: ANN401
    """Return the mesh that a mesh was cut from: a method since PyTorch 2.8, before it in a table of the module's."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    table = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    find = getattr(table, "get_root_mesh", getattr(table, "get_parent_mesh", None))
    return (find and find(mesh)) or mesh


def _given(given: dict[object, object], misuse: Misuse) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, value in dict.items(given):
        dimension = _DIMENSION.get((name(key) or "").lower())
        number = whole(value, LARGEST)
        if dimension is None:
            misuse.note("unknown_name", f"{_USE}={{{shown(key)[:40]}: …}}", wrong=key, right=DIMENSIONS)
        elif number is None:
            misuse.note(
                "wrong_type", f"{_USE}={{{dimension}: …}}", f"cannot be {shown(value)}: expected a number from 0"
            )
        else:
            found[dimension] = number
    return found


def _of_megatron(state: Any) -> dict[str, int]:  # noqa: ANN401 - a module of another package
    found: dict[str, int] = {}
    for dimension, words in _MEGATRON_WORDS.items():
        try:
            if getattr(state, f"get_{words}_world_size")() > 1:
                found[dimension] = int(getattr(state, f"get_{words}_rank")())
        except Exception:  # noqa: BLE001 - before its groups exist each of them raises; a version may lack some
            continue
    return found
