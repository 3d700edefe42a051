"""The hooks into PyTorch: its own optimizer hooks, and wrappers where it has none.

Every wrapper calls what it wraps exactly once with what it was given, and lets its exceptions through.
"""

# ruff: noqa: ANN401 - PyTorch is not imported here, and has no type

from __future__ import annotations

import functools
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from tachograph.attach.observer import LoaderState, Observer
from tachograph.attach.on_import import when_imported
from tachograph.client.core.contained import contained
from tachograph.client.core.notice import notice


def attach(torch: Any, observer: Observer) -> None:
    """Hook each part separately: if this PyTorch lacks one, only that part is not observed."""
    for hook in (
        _loaders, _backward, _optimizers, _parallel, _schedules, _scalers, _evaluations, _saves, _compilations,
        _clipping, _ranks,
    ):  # fmt: skip
        try:
            hook(torch, observer)
        except Exception as error:  # noqa: BLE001 - a PyTorch where a name has moved: the other parts still work
            notice(f"attach {hook.__name__}", f"tachograph run cannot see {hook.__name__.strip('_')}", error)


class ObservedIterator:
    """A loader's iterator that reports each batch; everything else is the iterator's own."""

    def __init__(self, iterator: Any, feed: LoaderState, observer: Observer, is_learning: Callable[[], bool]) -> None:
        self._iterator = iterator
        self._feed = feed
        self._observer = observer
        self._is_learning = is_learning
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> ObservedIterator:
        return self

    def __next__(self) -> Any:
        loop = self._observer.recording.here()
        if loop is None:
            return next(self._iterator)
        learning = self._is_learning()
        self._observer.fetching(self._feed, learning)
        if self._batches is None:
            self._feed.iterator = self._iterator
            self._batches = iter(loop.recorder.data(self._feed))
        try:
            batch = next(self._batches)
        except StopIteration:
            self._observer.exhausted()
            raise
        self._observer.delivered(self._feed, learning)
        return batch

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)


_frames: list[CodeType] = []
"""The code of our wrappers and hooks, whose frames Dynamo is to leave alone."""

IN_A_STEP = (
    "backward_begins", "backward_ends", "scaled", "clipped", "optimizer_begins", "optimizer_ends", "optimizer_skipped",
)  # fmt: skip
"""Calls of an observer that a compiled function may come to where its graph is broken."""


def _in_place_of(original: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate the wrapper of a function: to Dynamo it is the function itself, in whose graph nothing can be timed."""

    def decorate(wrapper: Any) -> Any:
        wrapper._torchdynamo_inline = original
        _frames.append(wrapper.__code__)
        return functools.update_wrapper(wrapper, original)

    return decorate


def _loaders(torch: Any, observer: Observer) -> None:
    loader_class = torch.utils.data.DataLoader
    original = loader_class.__iter__
    feeds: WeakKeyDictionary[Any, LoaderState] = WeakKeyDictionary()

    @_in_place_of(original)
    def iterate(loader: Any) -> Any:
        loop = observer.recording.here()
        if loop is None:
            return original(loader)
        with loop.recorder.phase(observer.starting(torch.is_grad_enabled())):
            iterator = original(loader)  # at once, as without us: it draws a random seed and starts the workers
        feed = feeds.get(loader)
        if feed is None:
            feed = feeds[loader] = LoaderState()
        return ObservedIterator(iterator, feed, observer, torch.is_grad_enabled)

    loader_class.__iter__ = iterate


def _backward(torch: Any, observer: Observer) -> None:
    original = torch.autograd.backward  # Tensor.backward calls it, too

    @_in_place_of(original)
    def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
        observer.backward_begins(tensors)
        try:
            return original(tensors, *arguments, **named)
        finally:
            observer.backward_ends()

    torch.autograd.backward = backward


def _optimizers(torch: Any, observer: Observer) -> None:
    hooks = importlib.import_module("torch.optim.optimizer")  # torch.optim hides the name
    _call_when_made(hooks.Optimizer, observer.optimizer_made)

    def begins(optimizer: Any, *_: Any) -> None:
        observer.optimizer_begins(optimizer)

    def ends(optimizer: Any, *_: Any) -> None:
        observer.optimizer_ends(optimizer)

    _observers.append(observer)
    for hook, stand_in in ((begins, _begins_in_graph), (ends, _ends_in_graph)):
        hook._torchdynamo_inline = stand_in  # type: ignore[attr-defined]
        _frames.append(hook.__code__)
    hooks.register_optimizer_step_pre_hook(begins)
    hooks.register_optimizer_step_post_hook(ends)


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

    @_in_place_of(scale)
    def scaled(scaler: Any, outputs: Any) -> Any:
        result = scale(scaler, outputs)
        observer.scaled(scaler, outputs, result)
        return result

    @_in_place_of(step)
    def stepped(scaler: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        result = step(scaler, optimizer, *arguments, **named)
        observer.optimizer_skipped(optimizer)
        return result

    scaler_class.scale, scaler_class.step = scaled, stepped


def _evaluations(torch: Any, observer: Observer) -> None:
    """Watch `train()` during an evaluation only: it calls itself for each of a model's modules."""
    module_class = torch.nn.Module
    evaluate, train = module_class.eval, module_class.train

    @_in_place_of(evaluate)
    def evaluating(module: Any) -> Any:
        result = evaluate(module)
        if observer.evaluation_begins(module):
            module_class.train = training
        return result

    @_in_place_of(train)
    def training(module: Any, mode: bool = True) -> Any:
        if mode and observer.evaluation_ends(module):
            module_class.train = train
        return train(module, mode)

    module_class.eval = evaluating


def _saves(torch: Any, observer: Observer) -> None:
    kept_kinds = (Mapping, torch.nn.Module)

    def kept(obj: Any, f: Any, *_: Any, **__: Any) -> tuple[bool, Any]:
        return isinstance(obj, kept_kinds) and not isinstance(f, io.BytesIO), f if _is_path(f) else _path_of(f, "name")

    torch.save = _observed_save(torch.save, observer, kept)
    when_imported("torch.distributed.checkpoint.state_dict_saver", lambda saver: _distributed_saves(saver, observer))


def _distributed_saves(saver: Any, observer: Observer) -> None:
    def kept(*_: Any, checkpoint_id: Any = None, storage_writer: Any = None, **__: Any) -> tuple[bool, Any]:
        return True, checkpoint_id if _is_path(checkpoint_id) else _path_of(storage_writer, "path")

    saver.save = _observed_save(saver.save, observer, kept)
    saver.async_save = _observed_save(saver.async_save, observer, kept)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _path_of(value: Any, attribute: str) -> Any:
    """Return the path that an open file, or a writer of checkpoints, has as an attribute; None without one."""
    path = getattr(value, attribute, None)
    return path if _is_path(path) else None


def _observed_save(original: Callable[..., Any], observer: Observer, kept: Callable[..., tuple[bool, Any]]) -> Any:
    """Return `original` as phase `checkpoint`; a future that it returns is the end of the upload.

    `kept` tells, by its arguments, whether the script can go on from what was saved, and where that is.
    """

    @_in_place_of(original)
    def save(*arguments: Any, **named: Any) -> Any:
        if not observer.saving():
            return original(*arguments, **named)
        try:
            result = original(*arguments, **named)
        except BaseException as error:
            observer.saved(error, kept=True)
            raise
        upload = getattr(result, "upload_completion", result)
        observer.saved(None, *kept(*arguments, **named), upload if hasattr(upload, "add_done_callback") else None)
        return result

    return save


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
    for code in _frames:
        torch._dynamo.decorators.skip_code(code)
    for name in IN_A_STEP:
        setattr(observer, name, torch._dynamo.disable(getattr(observer, name)))


def _clipping(torch: Any, observer: Observer) -> None:
    clip: Any = importlib.import_module("torch.nn.utils.clip_grad")
    original = clip.clip_grad_norm_

    @_in_place_of(original)
    def clipped(*arguments: Any, **named: Any) -> Any:
        norm = original(*arguments, **named)
        observer.clipped(norm)
        return norm

    clip.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_ = clipped


def _ranks(torch: Any, observer: Observer) -> None:
    """Watch a script become one of several ranks, or start them."""
    distributed = torch.distributed
    spawn: Any = sys.modules["torch.multiprocessing.spawn"]
    join, start = distributed.init_process_group, spawn.start_processes

    @_in_place_of(join)
    def joined(*arguments: Any, **named: Any) -> Any:
        result = join(*arguments, **named)
        observer.recording.joined()
        return result

    @_in_place_of(start)
    def starting(*arguments: Any, **named: Any) -> Any:
        observer.recording.starts_others()
        return start(*arguments, **named)

    distributed.init_process_group = joined
    spawn.start_processes = torch.multiprocessing.start_processes = starting
