"""Numbers out of whatever is logged."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from tachograph.client.core import scalars
from tachograph.client.core.scalars import SPREAD, Reading, number, read


class Liar:
    """Claims to be a number."""

    def __float__(self) -> float:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0.0), (0.0, 0.0), (-1.5, -1.5), (Decimal("0.25"), 0.25), (Fraction(1, 2), 0.5)]
)
def test_numbers_are_read(value: Any, expected: float) -> None:
    """Every kind of real number is taken, zero too."""
    assert number(read(value)) == expected


def test_nonfinite_values_are_values() -> None:
    """NaN and infinities are readings, not failures."""
    assert math.isnan(number(read(math.nan)) or 0)
    assert number(read(-math.inf)) == -math.inf


@pytest.mark.parametrize(
    "value", [None, "1.5", b"1", True, [1.0], {"loss": 1}, object(), Liar(), 1j, int, 10**400, lambda: 1.0]
)
def test_what_is_no_number_is_none(value: object) -> None:
    """Nothing raises, nothing is guessed: text, booleans, containers, liars and integers beyond a float."""
    assert number(read(value)) is None


def test_endless_types_cost_no_memory() -> None:
    """A program that makes a type per value does not fill the table of readers."""
    for position in range(200):
        read(type(f"Number{position}", (), {"__float__": lambda self: 1.0})())
    assert len(scalars._readers) <= scalars._READERS_LIMIT


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_cpu_tensors() -> None:
    """One element of any shape and dtype is read; several, or a boolean, are not."""
    torch = pytest.importorskip("torch")
    assert number(read(torch.tensor(2.5, requires_grad=True))) == 2.5
    assert number(read(torch.tensor([[3]], dtype=torch.int64))) == 3
    assert number(read(torch.tensor(0.5, dtype=torch.bfloat16))) == 0.5
    assert number(read(torch.nn.Parameter(torch.tensor(1.0)))) == 1.0
    assert number(read(torch.ones(2))) is None
    assert number(read(torch.tensor(True))) is None
    assert number(read(torch.tensor(1.0, device="meta"))) is None


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_tensor_subclasses_are_refused() -> None:
    """A subclass may start a collective in `.item()`, as DTensor does: only plain tensors are read."""
    torch = pytest.importorskip("torch")

    started = []

    class Distributed(torch.Tensor):  # type: ignore[name-defined, misc]
        def item(self) -> float:
            started.append("a collective")
            return 1.0

    assert number(read(torch.ones(1).as_subclass(Distributed))) is None
    assert not started


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_distributed_tensor_is_read_where_every_rank_has_all_of_it() -> None:
    """As the norm that FSDP2's gradients were clipped by: of what is spread out, no part is the value."""
    torch = pytest.importorskip("torch")
    from torch.distributed import tensor as distributed_tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))

        def of(placement: object) -> Reading:
            return read(distributed_tensor.DTensor.from_local(torch.tensor([2.5]), mesh, [placement], run_check=False))

        assert number(of(distributed_tensor.Replicate())) == 2.5
        for placement in (distributed_tensor.Partial(), distributed_tensor.Shard(0)):
            assert of(placement) is SPREAD
        assert number(SPREAD) is None
    finally:
        torch.distributed.destroy_process_group()
