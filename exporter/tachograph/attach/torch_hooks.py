"""The hooks into PyTorch: its own optimizer hooks, and wrappers where it has none.

Every wrapper calls what it wraps exactly once with what it was given, and lets its exceptions through.
"""

# ruff: noqa: ANN401 - PyTorch is not imported here, and has no type

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from tachograph.attach import step_values
from tachograph.attach.generation_hooks import hook_generation
from tachograph.attach.in_place import FRAMES, in_place_of
from tachograph.attach.loader_hooks import hook_loaders
from tachograph.attach.observer import Observer
from tachograph.attach.on_import import when_imported
from tachograph.attach.save_hooks import hook_saves
from tachograph.client.core.contained import contained
from tachograph.client.core.notice import notice


def attach(torch: Any, observer: Observer) -> None:
    """Hook each part separately: if this PyTorch lacks one, only that part is not observed."""
    for hook in (
        hook_loaders, _backward, _graph_hooks, _zeroing, _optimizers, _parallel, _schedules, _scalers, _modes,
        hook_saves, hook_generation, _compilations, _clipping, _ranks,
    ):  # fmt: skip
        try:
            hook(torch, observer)
        except Exception as error:  # noqa: BLE001 - a PyTorch where a name has moved: the other parts still work
            part = hook.__name__.removeprefix("hook").strip("_")
            notice(f"attach {part}", f"nothing is seen of {part}", error)


IN_A_STEP = (
    "backward_begins", "backward_ends", "scaled", "clipped", "update_begins", "update_ends", "closure_begins",
    "closure_ends",
)  # fmt: skip
"""Calls of an observer that a compiled function may come to where its graph is broken."""


def _backward(torch: Any, observer: Observer) -> None:
    original = torch.autograd.backward  # Tensor.backward calls it, too

    @in_place_of(original)
    def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
        observer.backward_begins(tensors)
        try:
            result = original(tensors, *arguments, **named)
        except BaseException:
            observer.backward_ends(failed=True)
            raise
        observer.backward_ends()
        return result

    torch.autograd.backward = backward


def _graph_hooks(torch: Any, _: Observer) -> None:
    """Know of a script's hooks for saved tensors: what those give, they may give once, or compute anew."""
    hooks = torch.autograd.graph.saved_tensors_hooks
    original = hooks.__enter__

    @in_place_of(original)
    def entered(context: Any) -> Any:
        step_values.unpacked_by_hooks = True
        return original(context)

    hooks.__enter__ = entered


def _zeroing(torch: Any, observer: Observer) -> None:
    for owner, tell in ((torch.optim.Optimizer, observer.zeroed), (torch.nn.Module, observer.module_zeroed)):
        owner.zero_grad = _told_of(owner.zero_grad, tell)


def _told_of(original: Any, tell: Callable[[Any], None]) -> Any:
    @in_place_of(original)
    def zero_grad(self: Any, *arguments: Any, **named: Any) -> Any:
        tell(self)
        return original(self, *arguments, **named)

    return zero_grad


def _optimizers(torch: Any, observer: Observer) -> None:
    hooks = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the name
    _call_when_made(hooks.Optimizer, observer.optimizer_made)

    def begins(optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        closure = named.get("closure") or (arguments[1] if len(arguments) > 1 else None)
        if not callable(closure):
            observer.update_begins(optimizer)
            return None
        observer.update_begins(optimizer, closure=True)
        closure = _observed_closure(closure, observer)
        if "closure" in named:
            return arguments, {**named, "closure": closure}
        return (arguments[0], closure, *arguments[2:]), named

    def ends(optimizer: Any, *_: Any) -> None:
        observer.update_ends(optimizer, optimizer)

    _observers.append(observer)
    for hook, stand_in in ((begins, _begins_in_graph), (ends, _ends_in_graph)):
        hook._torchdynamo_inline = stand_in  # type: ignore[union-attr]
        FRAMES.append(hook.__code__)
    hooks.register_optimizer_step_pre_hook(begins)
    hooks.register_optimizer_step_post_hook(ends)


def _observed_closure(closure: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Return what an optimizer calls in place of `closure`."""

    def observed(*arguments: Any, **named: Any) -> Any:
        observer.closure_begins()
        try:
            return closure(*arguments, **named)
        finally:
            observer.closure_ends()

    return observed


_observers: list[Observer] = []


def _begins_in_graph(*_: Any) -> None:
    """Stand in for the hook where an optimizer's step is compiled; no closure: see `client.core.compiled`."""
    _step_compiled(True)


def _ends_in_graph(*_: Any) -> None:
    _step_compiled(False)


def _step_compiled(begins: bool) -> None:
    """Tell that a step is in a graph; called by Dynamo itself, as it traces."""
    for observer in _observers:
        observer.step_compiled(begins)


_step_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _call_when_made(owner: Any, tell: Callable[[Any], None]) -> None:
    original = owner.__init__

    @functools.wraps(original)
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        tell(self)

    owner.__init__ = made


def _parallel(torch: Any, observer: Observer) -> None:
    _call_when_made(torch.nn.parallel.DistributedDataParallel, observer.model_made)


def _schedules(torch: Any, observer: Observer) -> None:
    _call_when_made(torch.optim.lr_scheduler.LRScheduler, observer.schedule_made)


def _scalers(torch: Any, observer: Observer) -> None:
    scaler_class = torch.amp.GradScaler
    scale, step = scaler_class.scale, scaler_class.step

    @in_place_of(scale)
    def scaled(scaler: Any, outputs: Any) -> Any:
        result = scale(scaler, outputs)
        observer.scaled(scaler, outputs, result)
        return result

    @in_place_of(step)
    def stepped(scaler: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        observer.update_begins(scaler)
        result = step(scaler, optimizer, *arguments, **named)
        observer.update_ends(scaler, optimizer)  # which it has skipped, unless that has stepped inside
        return result

    scaler_class.scale, scaler_class.step = scaled, stepped


def _modes(torch: Any, observer: Observer) -> None:
    """Watch `train()`, which `eval()` calls; it calls itself for each of a model's modules."""
    module_class = torch.nn.Module
    original = module_class.train
    inside = False

    @in_place_of(original)
    def train(module: Any, mode: bool = True) -> Any:
        nonlocal inside
        if inside:
            return original(module, mode)
        inside = True
        try:
            if mode:
                observer.mode_set(module, True)
            result = original(module, mode)
            if not mode:
                observer.mode_set(module, False)
            return result
        finally:
            inside = False

    module_class.train = train


def _compilations(torch: Any, observer: Observer) -> None:
    when_imported("torch._dynamo.callback", lambda callback: _listen(torch, observer, callback.callback_handler))


def _listen(torch: Any, observer: Observer, handler: Any) -> None:
    """Be notified of compilations; with the first, our calls are hidden from Dynamo, which costs each a microsecond."""
    hidden = False

    def starts(*_: Any) -> None:
        nonlocal hidden
        observer.compiling()
        if not hidden:
            hidden = True
            _hide(torch, observer)

    handler.register_start_callback(starts)


@contained
def _hide(torch: Any, observer: Observer) -> None:
    for code in FRAMES:
        torch._dynamo.decorators.skip_code(code)
    for name in IN_A_STEP:
        setattr(observer, name, torch._dynamo.disable(getattr(observer, name)))


def _clipping(torch: Any, observer: Observer) -> None:
    utils: Any = torch.nn.utils
    clip = utils.clip_grad_norm_

    @in_place_of(clip)
    def clipped(*arguments: Any, **named: Any) -> Any:
        norm = clip(*arguments, **named)
        observer.clipped(norm)
        return norm

    home: Any = importlib.import_module("torch.nn.utils.clip_grad")
    home.clip_grad_norm_ = utils.clip_grad_norm_ = clipped
    scale = getattr(utils, "clip_grads_with_norm_", None)
    if scale is None:  # PyTorch before 2.6
        return

    @in_place_of(scale)
    def scaled(parameters: Any, max_norm: Any, total_norm: Any, *arguments: Any, **named: Any) -> Any:
        observer.clipped(total_norm)
        return scale(parameters, max_norm, total_norm, *arguments, **named)

    utils.clip_grads_with_norm_ = scaled


def _ranks(torch: Any, observer: Observer) -> None:
    """Watch a script become one of several ranks, or start them."""
    distributed = torch.distributed
    spawn: Any = sys.modules["torch.multiprocessing.spawn"]
    join, start = distributed.init_process_group, spawn.start_processes

    @in_place_of(join)
    def joined(*arguments: Any, **named: Any) -> Any:
        result = join(*arguments, **named)
        observer.recording.joined()
        return result

    @in_place_of(start)
    def starting(*arguments: Any, **named: Any) -> Any:
        observer.recording.starts_others()
        return start(*arguments, **named)

    distributed.init_process_group = joined
    spawn.start_processes = torch.multiprocessing.start_processes = starting
