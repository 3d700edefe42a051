"""Exposed wait of one rank in these functions: only in the thread that trains, inside its steps, and counted once.

On a CPU the thread itself waits: the clock is in phase `collective` meanwhile, as with a mark by hand, so the wait is
no part of the phase that it lies in. Between steps too, so that a hang there is not taken for a pause; but such a wait,
for a rank that saves, is no part of a step and not counted. On a GPU the call returns at once and the stream waits,
which `StreamWait` measures where that stream is the device's default one; the host's phases stay as they are.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import Any

from tachograph.client.core.notice import notice
from tachograph.client.core.phases import OURS, PhaseClock
from tachograph.client.core.steps import ExposedWait
from tachograph.client.torch.loaded_torch import loaded_torch
from tachograph.client.torch.operation_totals import OperationTotals
from tachograph.client.torch.waits.stream_wait import StreamWait
from tachograph.client.torch.waits.wait_functions import WAIT_FUNCTIONS, Attached, WaitFunction, attach

NOT_TRAINING = ("collective", "eval", "checkpoint")
"""Phases whose waits are theirs: marked by hand already, or of what runs on its own schedule."""

NOBODY = 0
"""No thread's identifier."""

DEFAULT_STREAM = 0
"""The handle of a device's default stream; a side stream is a collective's own, where nothing is exposed."""

NO_BACKWARD = -1


class Waits:
    """Waits in the functions of PyTorch that wait, from `attach` to `detach`; belongs to the thread that makes it.

    `shared` gets what is measured on a CPU; `gpu_found` is called once if it is a GPU's stream that waits.
    """

    def __init__(self, clock: PhaseClock, shared: ExposedWait, gpu_found: Callable[[], None]) -> None:
        self._clock = clock
        self._shared = shared
        self._gpu_found = gpu_found
        self._thread = get_ident()
        self._totals = {target.operation: OperationTotals() for target in WAIT_FUNCTIONS}
        self._torch: Any = None  # once a GPU is in use
        self._streams: dict[str, StreamWait] = {}
        self._inside = False
        self._attached: list[Attached] = []
        self._left = deque(WAIT_FUNCTIONS)  # the sender thread attaches, too: each takes one from here
        self._frames = [call.__code__ for call in (Waits._on_stream, Waits._begin, Waits._in_backward)]

    def attach(self) -> None:
        """Attach to every function whose module is loaded by now; what PyTorch does not have is logged once."""
        if self._thread == NOBODY:
            return
        if self._torch is None and (torch := _torch_on_gpu()) is not None:
            self._streams = {operation: StreamWait(torch.cuda) for operation in self._totals}
            self._torch = torch
            self._gpu_found()
        if self._left and _has_distributed():
            for _ in range(len(self._left)):
                self._attach_next()
        self._hide()

    def _attach_next(self) -> None:
        """Attach to one, unless another thread took the last; a lock could stay locked forever after a fork."""
        try:
            target = self._left.popleft()
        except IndexError:
            return
        try:
            attached = attach(target, partial(self._measured, target))
        except (AttributeError, KeyError, TypeError) as error:
            notice(f"wait {target.name}", f"waits for collectives in {target.name} are not measured", error)
            return
        if attached is None:
            self._left.append(target)
        elif self._thread == NOBODY:
            attached.detach()
        else:
            self._attached.append(attached)

    def _hide(self) -> None:
        """Have Dynamo, if it is loaded, not compile our frames; before that it compiles nothing."""
        skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
        if skip is not None:
            while self._frames:
                skip(self._frames.pop())

    def detach(self) -> None:
        """Measure nothing any more, and leave PyTorch as it was."""
        self._thread = NOBODY
        while self._attached:
            self._attached.pop().detach()

    def seconds(self) -> dict[str, float]:
        """Return all wait so far by operation; those never waited for are absent. Called by the sender thread."""
        return {operation: totals.wait for operation, totals in self._totals.items() if totals.wait}

    @property
    def entered(self) -> bool:
        """Whether there was a wait to measure so far: it depends on the program, and not on how long anything takes."""
        return bool(self.seconds()) or any(stream.entered for stream in self._streams.values())

    def on_gpu(self) -> float:
        """Return all wait of a GPU's stream that is known by now; called by the training thread at a step's end."""
        total = 0.0
        for operation, stream in self._streams.items():
            totals = self._totals[operation]
            if stream.pending:
                stream.resolve(totals)
            total += totals.wait or 0.0
        return total

    def _measured(self, target: WaitFunction, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `original` with its time counted; the way of a CPU is written for speed."""
        clock, shared, totals = self._clock, self._shared, self._totals[target.operation]
        collective, evaluation, checkpoint = (clock.phases[name] for name in NOT_TRAINING)
        only_on_gpu = target.only_on_gpu

        def wait(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the original takes and returns
            if self._torch is not None:
                return self._on_stream(target, original, given, named)
            left = clock.current
            if (
                only_on_gpu
                or left is collective
                or left is evaluation
                or left is checkpoint
                or (clock.outer is None and left is not clock.other)
                or get_ident() != self._thread
            ):
                return original(*given, **named)
            # A phase entered and left, in its order (see `Phase`), without the calls: they would take twice the time.
            try:
                now = perf_counter()
                elapsed = now - clock.since
                clock.since = now
                clock.current = collective
                left.seconds += elapsed
            except OURS:
                clock.failed = True
            try:
                return original(*given, **named)
            finally:
                try:
                    now = perf_counter()
                    elapsed = now - clock.since
                    clock.since = now
                    clock.current = left
                    collective.seconds += elapsed
                    if clock.outer is not None:
                        totals.wait = (totals.wait or 0.0) + elapsed
                        shared.seconds += elapsed
                except OURS:
                    clock.failed = True

        self._frames.append(wait.__code__)
        return wait

    def _on_stream(
        self, target: WaitFunction, original: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:  # noqa: ANN401
        stream = self._streams[target.operation]
        began = self._begin(stream)
        if began is None:
            return original(*given, **named)
        self._inside = True
        try:
            return original(*given, **named)
        finally:
            self._inside = False
            stream.end(began)

    def _begin(self, stream: StreamWait) -> Any:  # noqa: ANN401 - a torch.cuda.Event
        """Return where a wait begins; None where it is none of the training's, or not of its stream's."""
        try:
            clock = self._clock
            if self._inside or clock.outer is None or clock.current.name in NOT_TRAINING:
                return None
            if self._thread == NOBODY or not (get_ident() == self._thread or self._in_backward()):
                return None
            if self._torch.cuda.current_stream().cuda_stream != DEFAULT_STREAM:
                return None
            return stream.begin()
        except Exception as error:  # noqa: BLE001 - a CUDA error is the training code's to meet, not ours to raise
            notice("gpu wait", "a wait for collectives could not be measured", error)
            return None

    def _in_backward(self) -> bool:
        """Return whether this is a thread of autograd's engine: on a GPU they run the backward pass."""
        return bool(self._torch._C._current_graph_task_id() != NO_BACKWARD)


def _torch_on_gpu() -> Any:  # noqa: ANN401 - a module
    """Return torch once the training code has initialised CUDA; asked so that nothing here initialises it."""
    torch = loaded_torch()
    try:
        return torch if torch.cuda.is_initialized() else None
    except AttributeError:  # torch absent, or half imported
        return None


def _has_distributed() -> bool:
    try:
        return bool(loaded_torch().distributed.is_available())
    except AttributeError:  # torch absent, or half imported
        return False
