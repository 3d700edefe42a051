"""The checksum of the parameters, and the product whose result is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tachograph.client.core.counters import Counter
from tachograph.client.signals.invariants import Invariants
from tachograph.client.torch.model import matmul_check
from tachograph.client.torch.model.checksum import Checksum, _bit_sum, combine, replicated
from tachograph.client.torch.model.device_readings import DeviceReadings
from tachograph.client.torch.model.matmul_check import ANSWERS, INNER, MatmulCheck
from tests.torch_programs import skip_without_fsdp2

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def torch() -> Any:
    """PyTorch."""
    return pytest.importorskip("torch")


def checksum(model: Any, step: int = 1) -> int | None:
    """Return the checksum of a model as told."""
    invariants = Invariants()
    Checksum(model, 1, DeviceReadings(Counter()), invariants).after(step, None)  # type: ignore[arg-type]
    families: Any = dict(invariants.metrics())
    return families["invariant"]["parameter_checksum"] if families else None


def model(torch: Any, dtype: Any = None) -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(dtype or torch.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "complex64"])
def test_every_flipped_bit_is_seen(torch: Any, dtype: str) -> None:
    """Replicas are equal; one bit of one number, sign and lowest one too, makes them differ; in every precision."""
    one, other = (model(torch, getattr(torch, dtype)) for _ in range(2))
    right = checksum(one)
    assert right == checksum(other)
    raw = other[1].weight.detach()
    raw = (torch.view_as_real(raw) if raw.is_complex() else raw).view(torch.uint8)
    for byte in range(raw.element_size() * min(raw.shape[-1], 8)):
        for bit in (1, 128):
            raw[3, byte] ^= bit
            assert checksum(other) != right
            raw[3, byte] ^= bit
    assert checksum(other) == right


def test_tensors_that_change_places_are_seen(torch: Any) -> None:
    """The same numbers in another order of tensors are another model."""
    one = model(torch)
    right = checksum(one)
    one[0].weight.data, one[1].weight.data = one[1].weight.data, one[0].weight.data
    assert checksum(one) != right


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8"])
def test_how_a_tensor_lies_in_memory_does_not_matter(torch: Any, dtype: str) -> None:
    """Odd sizes, views that begin anywhere, other strides: the same numbers have the same sum on every rank."""
    for size in (1, 7, 8, 33):
        whole = (torch.arange(size * 3 + 5) % 251).to(getattr(torch, dtype))
        for offset in (0, 1, 2, 3):
            view = whole[offset : offset + size]
            assert _bit_sum(torch, view).item() == _bit_sum(torch, view.clone()).item()
        strided = whole[: size * 3 : 3]
        assert _bit_sum(torch, strided).item() == _bit_sum(torch, strided.contiguous()).item()
    square = (torch.arange(15) % 251).to(getattr(torch, dtype)).reshape(3, 5)
    assert _bit_sum(torch, square.t()).item() == _bit_sum(torch, square.t().contiguous()).item()


REPLICAS = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tachograph.client.signals.invariants import Invariants
from tachograph.client.torch.model.model_watch import ModelWatch
from tachograph.client.core.counters import Counter
def train(rank, path):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + path)
    model = DistributedDataParallel(torch.nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    def said(lie):
        invariants = Invariants()
        ModelWatch(model, optimizer, checksum_every=3, rank=rank, invariants=invariants, dropped=Counter()).attach()
        for _ in range(3):
            optimizer.zero_grad(); model(torch.randn(4, 5)).sum().backward(); optimizer.step()
            if lie: model.module.weight.data[1, 1] *= 1 + 2e-7
        found = [None, None]
        dist.all_gather_object(found, dict(invariants.metrics())["invariant"]["parameter_checksum"])
        return found
    alike, apart = said(False), said(rank == 1)
    assert alike[0] == alike[1] and apart[0] != apart[1], (alike, apart)
    dist.barrier()
    return model
other = os.fork()
kept = train(0 if other else 1, sys.argv[1])
# Not by a normal exit: PyTorch 2.13 frees a gloo group while it holds the GIL that the group's thread may wait for.
os._exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) if other else 0)
"""


def test_real_replicas(torch_program: Any, tmp_path: Path) -> None:
    """DDP's replicas agree although each saw other batches; one whose number changed by its last bit does not."""
    torch_program(REPLICAS, tmp_path / "store").end()


def test_sums_are_exact() -> None:
    """64 bits: neither sign nor size is lost, and the upper bits reach those an invariant keeps."""
    assert combine([0, 0]) == 0
    assert len({combine([0, value]) % 2**53 for value in (1, -1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))}) == 7
    assert combine([1, 2]) != combine([2, 1])


def test_only_every_nth_step(torch: Any) -> None:
    """The pass is made at the steps asked for, and told with its step."""
    invariants = Invariants()
    watched = model(torch)
    watch = Checksum(watched, 10, DeviceReadings(Counter()), invariants)
    for step in range(1, 10):
        watch.after(step, None)  # type: ignore[arg-type]
    assert not dict(invariants.metrics())
    watch.after(10, None)  # type: ignore[arg-type]
    assert dict(invariants.metrics())["invariant_step"] == {"parameter_checksum": 10}


def test_what_differs_by_design_is_left_out(torch: Any) -> None:
    """Shards, experts, and what DDP was told to ignore; a model of shards has no checksum at all."""
    linear = torch.nn.Linear(2, 2)
    assert replicated(linear.weight)
    for mark, value in (("tensor_model_parallel", True), ("allreduce", False), ("ds_id", 3), ("_is_flat_param", True)):
        other = torch.nn.Linear(2, 2)
        setattr(other.weight, mark, value)
        setattr(other.bias, mark, value)
        assert checksum(other) is None
    before = checksum(linear)
    linear.parameters_to_ignore = {"weight"}
    watch = Checksum(linear, 1, DeviceReadings(Counter()), Invariants())
    assert (watch.left_out, checksum(linear) != before) == (1, True)


def test_stages_and_expert_parts_are_not_compared_with_others(torch: Any) -> None:
    """Ranks share a name only where they hold the same parameters; replicas and shards of one do."""
    invariants = Invariants()
    watched = model(torch)
    for place in ({}, {"pp": 1, "dp": 3}, {"pp": 1, "ep": 0, "tp": 1}, {"dp": 2, "fsdp": 1}):
        Checksum(watched, 1, DeviceReadings(Counter()), invariants, place).after(1, None)  # type: ignore[arg-type]
    assert set(dict(invariants.metrics())["invariant"]) == {
        "parameter_checksum", "parameter_checksum_pp1", "parameter_checksum_pp1_ep0",
    }  # fmt: skip


SHARDED = """
import os, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from tachograph.client.signals.invariants import Invariants
from tachograph.client.torch.model.model_watch import ModelWatch
from tachograph.client.core.counters import Counter
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
for layer in model: fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
invariants, dropped = Invariants(), Counter()
watch = ModelWatch(model, optimizer, layers=2, activations=True, update_every=1, checksum_every=1, rank=0,
                   invariants=invariants, dropped=dropped)
watch.attach()
for _ in range(3):
    model(torch.randn(2, 4)).sum().backward(); optimizer.step(); optimizer.zero_grad()
said = dict(watch.metrics())
assert dropped.count == 0
assert set(dict(invariants.metrics())["invariant"]) == {"known_product"}, dict(invariants.metrics())
assert set(said["layer_grad_norm"]) == {"0", "1"} and said["layer_grad_norm"]["0"] > 0, said
assert set(said["layer_activation_rms"]) == {"0", "1"} and said["update_ratio"] > 0, said
dist.destroy_process_group()
"""


def test_a_real_sharded_model(torch_program: Any) -> None:
    """FSDP2: no checksum, one line in the log, and everything else of this rank's shard, without a collective."""
    skip_without_fsdp2()
    assert torch_program(SHARDED).end().count("differ by design") == 1


def entries(rows: int, columns: int, factor: int) -> list[list[int]]:
    return [[((i * columns + j) * factor % 65521 >> 3) % 3 - 1 for j in range(columns)] for i in range(rows)]


@pytest.mark.parametrize("side", sorted(ANSWERS))
def test_the_known_answers_are_right(side: int) -> None:
    """Worked out in Python's integers, without PyTorch; sums on the way stay within what bfloat16 holds exactly."""
    left, right = entries(side, INNER, 7919), entries(INNER, side, 104729)
    row_sums, column_sums = [sum(row) for row in right], [sum(column) for column in zip(*left, strict=True)]
    weighted = [sum((j + 1) * entry for j, entry in enumerate(row)) for row in right]
    rows = sum((i + 1) * sum(a * b for a, b in zip(row, row_sums, strict=True)) for i, row in enumerate(left))
    assert rows + 3 * sum(a * b for a, b in zip(column_sums, weighted, strict=True)) == ANSWERS[side]
    assert INNER <= 256


def product_error(watch: MatmulCheck, invariants: Invariants) -> Any:
    watch.after(1, None)  # type: ignore[arg-type]
    return dict(invariants.metrics())["invariant"]["known_product"]  # type: ignore[index]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_liar_has_an_error(torch: Any, dtype: str) -> None:
    """A device that computes right has error 0 in either precision, also under autocast; one wrong entry has not."""
    invariants = Invariants()
    watch = MatmulCheck(torch.device("cpu"), 1, DeviceReadings(Counter()), invariants)
    watch._left, watch._right = (matrix.to(getattr(torch, dtype)) for matrix in (watch._left, watch._right))
    with torch.autocast("cpu"):
        assert product_error(watch, invariants) == 0
    watch._left[200, 17] += 1
    assert product_error(watch, invariants) != 0
    watch._left[200, 17] = float("nan")
    assert product_error(watch, invariants) != 0
    assert matmul_check.CUDA_SIDE in ANSWERS
