"""The functions of PyTorch in which a training thread waits for collectives, whoever started them.

FSDP, tensor, sequence, expert and pipeline parallelism, and plain `torch.distributed` calls all come through the first
three. On a GPU, FSDP2 makes its stream wait for events instead, in methods of its own.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple


class WaitFunction(NamedTuple):
    """One function: of class `owner` in `module`, or of the module itself; `operation` is what it waits for.

    One that is `only_on_gpu` also does other work on a CPU, where it waits in one of the others.
    """

    module: str
    owner: str
    function: str
    operation: str
    only_on_gpu: bool = False

    @property
    def name(self) -> str:
        """Its full name."""
        return ".".join(filter(None, (self.module, self.owner, self.function)))


FULLY_SHARDED = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",
)
"""The module of FSDP2 since PyTorch 2.6, and the one before."""

WAIT_FUNCTIONS = (
    WaitFunction("torch.distributed", "Work", "wait", "other"),
    WaitFunction("torch._C", "Future", "wait", "other"),
    WaitFunction("torch.distributed._functional_collectives", "", "wait_tensor", "other"),
    *(
        WaitFunction(module, "FSDPParamGroup", function, operation, only_on_gpu=True)
        for module in FULLY_SHARDED
        for function, operation in (
            ("wait_for_unshard", "all_gather"),
            ("post_backward", "reduce_scatter"),
            ("finalize_backward", "reduce_scatter"),
        )
    ),
)


class Attached:
    """A function in whose place another one stands, until `detach`."""

    __slots__ = ("_name", "_original", "_owner", "_wrapper")

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:  # noqa: ANN401 - a class or a module
        called = getattr(owner, name)
        wrapper: Any = functools.update_wrapper(wrap(called), called)
        # In a graph nothing can be timed: there Dynamo sees the original, and breaks the graph where that is no Python.
        if isinstance(called, FunctionType):
            wrapper._torchdynamo_inline = called
        else:
            wrapper._torchdynamo_disable = True
        self._owner = owner
        self._name = name
        self._original = vars(owner)[name]
        self._wrapper = wrapper
        setattr(owner, name, wrapper)

    def detach(self) -> None:
        """Put the original back, unless somebody has wrapped it again meanwhile."""
        if vars(self._owner).get(self._name) is self._wrapper:
            setattr(self._owner, self._name, self._original)


def attach(target: WaitFunction, wrap: Callable[[Any], Any]) -> Attached | None:
    """Put `wrap(function)` in the function's place; None as long as its module is not loaded.

    AttributeError, KeyError or TypeError: this PyTorch has no such function, or it cannot be replaced.
    """
    module = sys.modules.get(target.module)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return Attached(getattr(module, target.owner) if target.owner else module, target.function, wrap)
