"""A rank's coordinates from PyTorch's own device meshes: whole ones, slices, and what sharded models lie on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tachograph.client.core.misuse import Misuse
from tachograph.client.hello.coordinates import Coordinates

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")]


def fully_shard(model: Any, **given: Any) -> Any:
    """PyTorch's, which was private."""
    try:
        from torch.distributed import fsdp

        function = fsdp.fully_shard
    except AttributeError:
        from torch.distributed._composable.fsdp import fully_shard as function
    return function(model, **given)


@pytest.fixture
def mesh(torch: Any) -> Iterator[Any]:
    """Rank 13 of 16 in two stages of two replicas of two shards of two tensor parts; nothing is ever sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=13, world_size=16, store=FakeStore())
    try:
        yield torch.distributed.device_mesh.init_device_mesh(
            "cpu", (2, 2, 2, 2), mesh_dim_names=("pp", "dp_replicate", "dp_shard", "tp")
        )
    finally:
        torch.distributed.destroy_process_group()


def test_a_mesh_that_is_given(mesh: Any) -> None:
    """By the names of its dimensions; a slice knows what it was cut from."""
    for given in (mesh, mesh["tp"], mesh["dp_replicate", "dp_shard"]):
        misuse, coordinates = Misuse(), Coordinates()
        coordinates.take(given, misuse)
        assert coordinates.read() == {"pp": 1, "dp": 1, "fsdp": 0, "tp": 1}
        assert not misuse.notices()


def test_the_mesh_of_a_sharded_model(torch: Any, mesh: Any) -> None:
    """FSDP2 and tensor parallelism leave it on the parameters; a plain model has none."""
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    coordinates = Coordinates()
    coordinates.find(torch.nn.Linear(4, 4))
    assert coordinates.read() == {}
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    parallelize_module(model[1], mesh["tp"], ColwiseParallel())
    fully_shard(model, mesh=mesh["dp_shard"])
    coordinates.find(model)
    assert coordinates.read() == {"pp": 1, "dp": 1, "fsdp": 0, "tp": 1}
    coordinates.find(object())
    assert coordinates.read()["pp"] == 1


def test_a_model_spread_over_the_whole_run(torch: Any, mesh: Any) -> None:
    """DDP, FSDP2 and FSDP1 without a mesh: nothing but the number of the replica or shard distinguishes the ranks."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    def found(model: Any) -> dict[str, int]:
        coordinates = Coordinates()
        coordinates.find(model)
        return coordinates.read()

    whole, part = torch.distributed.group.WORLD, mesh["tp"].get_group()
    parallel = torch.nn.parallel.DistributedDataParallel
    assert found(parallel(torch.nn.Linear(4, 4))) == {"dp": 13}
    assert found(fully_shard(torch.nn.Linear(4, 4))) == {"fsdp": 13}
    assert found(FullyShardedDataParallel(torch.nn.Linear(4, 4), whole, device_id="cpu")) == {"fsdp": 13}
    assert found(parallel(torch.nn.Linear(4, 4), process_group=part)) == {}


def test_a_mesh_without_names_says_nothing(torch: Any, mesh: Any) -> None:
    """Neither one of tensor parts, nor one that is not the whole run."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    line, part = DeviceMesh("cpu", list(range(16))), DeviceMesh("cpu", list(range(8, 16)))
    models = [
        parallelize_module(torch.nn.Linear(4, 4), line, ColwiseParallel()),
        fully_shard(torch.nn.Linear(4, 4), mesh=part),
    ]
    for model in models:
        coordinates = Coordinates()
        coordinates.find(model)
        assert coordinates.read() == {}
