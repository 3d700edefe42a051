"""Accelerate, and plain loops that want one line: `training(loader, …)` around the loop.

    with training(loader, accelerator=accelerator, model=model, optimizer=optimizer, run="llama-7b") as batches:
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()

Iterate over it as often as over the loader: once per epoch. Without an accelerator, backward and the loss are not seen:
use `with batches.phase("backward"):` and `batches.log(loss=loss)`.
"""

# ruff: noqa: ANN401 - Accelerate's and PyTorch's objects have no type here

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from tachograph.catalog.rank import PhaseName
from tachograph.client.core.contained import contained
from tachograph.client.recorder import Recorder
from tachograph.integrations.loop import Loop

T = TypeVar("T")


def training(
    loader: Iterable[T],
    *,
    accelerator: Any = None,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    accumulate: int = 1,
    recorder: Recorder | None = None,
    **given: Any,
) -> Training[T]:
    """Return a context manager that yields `loader`'s batches, and makes one step of what is done with each.

    `model` shows phase forward, `optimizer` phase optimizer, the learning rate and which batches complete a step,
    `accelerator` phase backward and the loss. Without an optimizer the accelerator says how many micro-batches make a
    step; without either, `accumulate` does. What is left in `given` are
    arguments of `tachograph.Recorder`; a `recorder` made earlier is the caller's to close.
    """
    if recorder is None:
        made, owned = _recorder(accelerator, given), True
    else:
        made, owned = recorder, False
    if scaler is None:
        scaler = _ask(accelerator, "scaler")
    return Training(loader, made, owned, Trained(accelerator, model, optimizer, scheduler, scaler), accumulate)


class Trained(NamedTuple):
    """The objects that a loop trains, and those it trains with; each may be None."""

    accelerator: Any
    model: Any
    optimizer: Any
    scheduler: Any
    scaler: Any


class Training(Generic[T]):
    """One training loop; see `training`."""

    def __init__(self, loader: Iterable[T], recorder: Recorder, owned: bool, trained: Trained, accumulate: int) -> None:
        self._loader = loader
        self.recorder = recorder
        self._owned = owned
        self._trained = trained
        self._every = accumulate
        self._loop = Loop(self.recorder)
        self._batches = self.recorder.data(loader)
        self._undo: list[Callable[[], None]] = []
        self._values: dict[str, object] = {}
        self._seen = 0
        self._hooked = False
        self._stepped = False

    def __enter__(self) -> Training[T]:
        self._attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._detach()
        self._loop.abandon()
        if self._owned:
            self.recorder.close(error)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        """Yield each batch inside a step. A step that `break` leaves counts if the optimizer has made its step."""
        for batch in self._batches:
            accumulating = self._is_accumulating()
            self._stepped = False
            self._loop.begin()
            try:
                yield batch
            except GeneratorExit:
                if not self._stepped:
                    self._loop.abandon()
                raise
            finally:
                self._complete(accumulating)

    def phase(self, name: PhaseName) -> AbstractContextManager[None]:
        """Return the context manager of a phase; see `Recorder.phase`."""
        return self.recorder.phase(name)

    def log(self, /, **values: object) -> None:
        """Record scalars of the step under way; see `Step.log`."""
        self._values.update(values)

    @contained
    def _complete(self, accumulating: bool) -> None:
        if self._hooked:  # the optimizer knows, also in a loop that accumulates by itself
            accumulating = not self._stepped and (accumulating or not self._skipped())
        if accumulating:
            self._loop.end_accumulating()
        else:
            values, self._values = self._values, {}
            self._loop.end(**values)

    def _skipped(self) -> bool:
        """Return whether mixed precision skipped the optimizer's step."""
        return bool(_ask(self._trained.accelerator, "optimizer_step_was_skipped"))

    def _is_accumulating(self) -> bool:
        """Return whether the next micro-batch leaves the optimizer alone, as `Accelerator.accumulate` will decide."""
        try:
            if self._trained.accelerator is None:
                self._seen += 1
                return bool(self._seen % self._every)
            state = self._trained.accelerator.gradient_state
            ends = state.sync_with_dataloader and state.end_of_dataloader
            return not ends and bool((self._trained.accelerator.step + 1) % state.num_steps)
        except Exception:  # noqa: BLE001 - no number, 0, an accelerator of another version: each batch is a step
            return False

    @contained
    def _attach(self) -> None:
        accelerator, model, optimizer, scheduler, scaler = self._trained
        self.recorder.watch(model, optimizer, scheduler=scheduler, scaler=scaler)
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper has no hooks
        if inner is not None:
            self._undo.append(inner.register_step_post_hook(self._optimizer_ends).remove)
            self._hooked = True
        if accelerator is not None:
            self._wrap("backward", self._backward)
            self._wrap("clip_grad_norm_", self._clip)

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        accelerator = self._trained.accelerator
        method = getattr(accelerator, name)
        if name in vars(accelerator):  # another loop inside whose `with` this one is
            self._undo.append(functools.partial(setattr, accelerator, name, method))
        else:
            self._undo.append(functools.partial(delattr, accelerator, name))
        setattr(accelerator, name, functools.wraps(method)(functools.partial(around, method)))

    @contained
    def _detach(self) -> None:
        while self._undo:
            self._undo.pop()()

    # Hooks of PyTorch and Accelerate: none returns anything of its own, none raises.

    @contained
    def _optimizer_ends(self, optimizer: Any, inputs: Any, named: Any) -> None:
        self._stepped = True

    def _backward(self, method: Callable[..., Any], loss: Any, *arguments: Any, **named: Any) -> Any:
        with self.recorder.phase("backward"):
            result = method(loss, *arguments, **named)
        self._see_loss(loss)
        return result

    @contained
    def _see_loss(self, loss: Any) -> None:
        self._loop.add_loss(loss, 1 / self._trained.accelerator.gradient_state.num_steps)

    def _clip(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        norm = method(*arguments, **named)
        self._values["grad_norm"] = norm
        return norm


def _recorder(accelerator: Any, given: dict[str, Any]) -> Recorder:
    """Return a recorder with the accelerator's rank and world size, unless others were given."""
    who = {"rank": "process_index", "local_rank": "local_process_index", "world_size": "num_processes"}
    found = {key: _ask(accelerator, attribute) for key, attribute in who.items()}
    precision = _ask(accelerator, "mixed_precision")
    return Recorder(**{**found, "precision": None if precision == "no" else precision, **given})


@contained
def _ask(accelerator: Any, attribute: str) -> Any:
    """Return an attribute of an accelerator, None if it has none."""
    return getattr(accelerator, attribute, None)
