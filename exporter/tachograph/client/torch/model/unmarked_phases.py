"""Phases `forward`, `backward` and `optimizer` of a loop that does not mark them, by the hooks of model and optimizer.

Only inside a step, and only where no phase is marked: a mark by hand takes precedence, and so does an evaluation.
"""

# ruff: noqa: ANN401 - hooks take what PyTorch gives them

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from typing import Any

from tachograph.client.core.contained import contained
from tachograph.client.core.phases import Phase, PhaseClock
from tachograph.client.core.steps import Step
from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.client.torch.model.layers import ModelHook, unwrapped
from tachograph.client.torch.model.scripting import hide_hooks

DEPTH = 3
"""How deep a model's output is searched for the tensor that backward begins with: `{"loss": …}`, `(loss, {…})`."""


class UnmarkedPhases:
    """Enters and leaves phases on the training thread; backward's also on the one that autograd runs for a GPU.

    What the hooks add to a step, most of it PyTorch's own work around them, is a row of `bench/client.py`. In a
    compiled graph, where nothing can be timed, they do nothing.
    """

    def __init__(self, clock: PhaseClock, step: Step) -> None:
        self._clock = clock
        self._step = step
        self._forward, self._backward, self._optimizer = (
            clock.phases[name] for name in ("forward", "backward", "optimizer")
        )
        self._open: list[Phase] = []
        self._handles: list[Any] = []
        self._thread = get_ident()
        self._torch = torch = loaded_torch()
        self._grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self._queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback

    def attach(self, model: Any, optimizer: Any) -> None:
        """Register the hooks; on the training thread. Raises what PyTorch raises where it refuses."""
        self._hide()
        keep = self._handles.append
        if isinstance(model, self._torch.nn.Module):
            hide_hooks()
            keep(model.register_forward_pre_hook(ModelHook(self._forward_begins), prepend=True))
            keep(model.register_forward_hook(ModelHook(self._forward_ends), always_call=True))
        if optimizer is not None:
            optimizer = unwrapped(optimizer)
            keep(optimizer.register_step_pre_hook(self._optimizer_begins))
            keep(optimizer.register_step_post_hook(self._optimizer_ends))

    def _hide(self) -> None:
        """Have Dynamo not compile our frames by themselves: PyTorch 2.4 does, as it leaves out those between.

        With `fullgraph=True` that would be an error. As a part of a graph they are inlined all the same.
        """
        native = getattr(getattr(self._torch, "_C", None), "_dynamo", None)
        skip = getattr(getattr(native, "eval_frame", None), "skip_code", None)
        if skip is not None:
            for call in _FRAMES:
                skip(call.__code__)

    def detach(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _forward_begins(self, *_: Any) -> None:
        if get_ident() == self._thread and self._grad_enabled():
            self._enter(self._forward)

    @contained
    def _forward_ends(self, model: Any, given: Any, output: Any) -> None:
        if not self._leave(self._forward):
            return
        plain = getattr(output, "requires_grad", False)
        tensor = output if plain else next(_differentiable(output, DEPTH), None)
        if tensor is not None:
            tensor.register_hook(self._backward_begins)

    @contained
    def _backward_begins(self, *_: Any) -> None:
        """Enter backward until autograd's callbacks have run, in which DDP and FSDP2 wait for the other ranks.

        They queue theirs later than we do; what a callback queues comes after all of them.
        """
        if self._enter(self._backward):
            queue = self._queue
            queue(lambda: queue(self._backward_ends))

    def _backward_ends(self) -> None:
        self._leave(self._backward)

    def _optimizer_begins(self, *_: Any) -> None:
        if get_ident() == self._thread:
            self._enter(self._optimizer)

    def _optimizer_ends(self, *_: Any) -> None:
        self._leave(self._optimizer)

    def _enter(self, phase: Phase) -> bool:
        """Enter `phase` where none is marked; inside our own `optimizer` too, whose closure trains."""
        current, open_ = self._clock.current, self._open
        if current is self._clock.other:
            open_.clear()  # what an exception or a mark by hand left open
        elif not (current is self._optimizer and open_ == [current]):
            return False
        if not self._step.under_way:
            return False
        open_.append(phase)
        phase.__enter__()
        return True

    def _leave(self, phase: Phase) -> bool:
        open_ = self._open
        if not open_ or open_[-1] is not phase or self._clock.current is not phase:
            return False
        open_.pop()
        phase.__exit__(None, None, None)
        return True


def _differentiable(output: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors in what a model returned through which a gradient flows."""
    if getattr(output, "requires_grad", False):
        yield output
    elif depth and isinstance(output, (tuple, list, Mapping)):
        for each in output.values() if isinstance(output, Mapping) else output:
            yield from _differentiable(each, depth - 1)


def _in_graph(*_: object) -> None:
    """Stand in for a hook in a compiled graph; see `client.core.compiled`."""


_FRAMES: tuple[Any, ...] = (
    ModelHook.__call__, UnmarkedPhases._forward_begins, UnmarkedPhases._forward_ends, UnmarkedPhases._optimizer_begins,
    UnmarkedPhases._optimizer_ends, UnmarkedPhases._enter, UnmarkedPhases._leave, _differentiable, Phase.__enter__,
    Phase.__exit__, inspect.unwrap(UnmarkedPhases._forward_ends),
)  # fmt: skip
"""What runs in hooks around a compiled graph."""

_IN_GRAPH: tuple[Any, ...] = (
    UnmarkedPhases._forward_begins, UnmarkedPhases._forward_ends, UnmarkedPhases._optimizer_begins,
    UnmarkedPhases._optimizer_ends,
)  # fmt: skip
for _hook in _IN_GRAPH:
    _hook._torchdynamo_inline = _in_graph
