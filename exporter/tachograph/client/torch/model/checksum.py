"""A 64-bit checksum of replicated parameters: data-parallel ranks that hold the same model have the same bits.

The raw bits of every tensor are added up as 64-bit integers on its device, one pass without a copy; the sums come over
asynchronously and are put together on the host, each times an odd number of its own, so that two tensors that change
places are seen. Integer sums are exact in any order: the checksum does not depend on device or kernel. The CUDA way has
not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import ref

from tachograph.client.signals.invariants import Invariants
from tachograph.client.torch.loaded_torch import in_use, loaded_torch
from tachograph.client.torch.model.device_readings import DeviceReadings

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Module, Optimizer, Tensor

NAME = "parameter_checksum"
_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}

_SHARD_MARKS = ("_local_tensor", "ds_id", "_is_flat_param")
"""Attributes that mark parameters of FSDP2 and tensor parallelism (DTensor), DeepSpeed ZeRO-3 and FSDP1 as shards."""


_OWN_PARAMETERS = ("pp", "ep")
"""Dimensions along which even parameters without these marks differ: stages hold other layers, parts other experts."""


class Checksum:
    """Takes the checksum of a model's replicated parameters after every Nth step and puts it among the invariants."""

    def __init__(
        self,
        model: Module,
        every: int,
        readings: DeviceReadings,
        invariants: Invariants,
        coordinates: Mapping[str, int] | None = None,
    ) -> None:
        self._every = every
        self._readings = readings
        self._invariants = invariants
        self._name = replica_name(model, coordinates or {})
        ignored = set(getattr(model, "parameters_to_ignore", ()))  # by DDP, which leaves them different on each rank
        whole = [(name.removeprefix("module."), one) for name, one in model.named_parameters()]
        kept = [one for name, one in whole if name not in ignored and replicated(one)]
        self._parameters = [ref(one) for one in kept]
        self.left_out = len(whole) - len(kept)

    def before(self, step: int, optimizer: Optimizer) -> None:
        """Do nothing before a step."""

    def after(self, step: int, optimizer: Optimizer) -> None:
        """Start the pass, if the step just made is one to check."""
        if step % self._every == 0:
            self.take(
                [parameter for one in self._parameters if (parameter := one()) is not None and parameter.numel()], step
            )

    def take(self, parameters: list[Tensor], step: int) -> None:
        """Sum the parameters' bits up; the invariant follows when the sums have arrived."""
        if parameters:
            torch: Any = loaded_torch()
            sums = [_bit_sum(torch, one.detach()) for one in parameters]
            home = sums[0].device
            vector = torch.stack([one.to(home, non_blocking=True) for one in sums])
            self._readings.read(vector, lambda values: self._set_invariant(values, step))

    def _set_invariant(self, values: list[float], step: int) -> None:
        self._invariants.set(self._name, combine([int(value) for value in values]), step)


def combine(sums: list[int]) -> int:
    """Return one number for all tensors' sums; its upper bits are folded into those that an invariant keeps."""
    total = 0
    for position, one in enumerate(sums):
        total += one * (_ODD * (2 * position + 1))
    total &= _MASK
    return total ^ (total >> 32)


def replicated(parameter: Tensor) -> bool:
    """Return whether a parameter is the same on all data-parallel ranks, as far as it can be told from its marks.

    Megatron marks those that differ by `tensor_model_parallel`, and experts by `allreduce = False`.
    """
    if any(hasattr(parameter, mark) for mark in _SHARD_MARKS) or not getattr(parameter, "allreduce", True):
        return False
    return not getattr(parameter, "tensor_model_parallel", False)


def replica_name(model: object, coordinates: Mapping[str, int]) -> str:
    """Return the invariant's name, which only ranks that hold the same parameters share.

    It has the lowest rank of the model's DDP process group, where that is not the whole run; without such a group, the
    coordinates that decide which layers or experts a rank holds: `parameter_checksum_pp1`.
    """
    distributed = in_use("distributed")
    group = getattr(model, "process_group", None)
    if distributed is None or group is None:
        return NAME + "".join(f"_{part}{coordinates[part]}" for part in _OWN_PARAMETERS if part in coordinates)
    ranks = distributed.get_process_group_ranks(group)
    return NAME if len(ranks) == distributed.get_world_size() else f"{NAME}_{min(ranks)}"


def _bit_sum(torch: Any, tensor: Tensor) -> Tensor:  # noqa: ANN401
    """Return the sum of a tensor's bits as 64-bit words, in its logical order, and what is left as smaller ones.

    Words of 64 bits because that is one pass without a cast, on a CPU 25 times as fast as the sum of int32.
    """
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).contiguous().reshape(-1)
    size = flat.element_size()
    if flat.storage_offset() * size % 8:
        flat = flat.clone()
    whole = flat.numel() - flat.numel() % (8 // size)
    words, rest = flat[:whole], flat[whole:]
    if rest.numel() == 0:
        return words.view(torch.int64).sum()
    left = rest.view(getattr(torch, _INTEGERS[size])).sum(dtype=torch.int64)
    return words.view(torch.int64).sum() + left if whole else left
