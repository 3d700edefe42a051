"""A step's floating-point operations, counted once by PyTorch's own `FlopCounterMode`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from tachograph.client.core.counters import Counter
from tachograph.client.core.notice import OUT, notice
from tachograph.client.torch.loaded_torch import in_use, loaded_torch


class FlopCount(AbstractContextManager[None]):
    """Counts what runs inside, forward and backward, and hands the sum to `take`; training goes on whatever happens.

    Counted are matrix products, convolutions and attention as PyTorch executes them, what activation checkpointing
    computes again included. On a CPU attention runs unfused meanwhile: of PyTorch's fused CPU kernel the counter finds
    nothing (2.13). A block that ends with an exception, and one in which nothing is found, count for nothing.
    """

    def __init__(self, take: Callable[[float], None], dropped: Counter) -> None:
        self._take = take
        self._dropped = dropped
        self._modes: list[AbstractContextManager[Any]] = []
        self._counter: Any = None

    def __enter__(self) -> None:
        try:
            if loaded_torch() is None:
                raise RuntimeError("PyTorch is not loaded")
            from torch.utils.flop_counter import FlopCounterMode

            self._counter = FlopCounterMode(display=False)
            modes = [self._counter]
            if in_use("cuda") is None:
                from torch.nn.attention import SDPBackend, sdpa_kernel

                modes.append(sdpa_kernel(SDPBackend.MATH))
            for mode in modes:
                mode.__enter__()
                self._modes.append(mode)
        except Exception as error:  # noqa: BLE001 - an older PyTorch, or one in an odd state: nothing is counted
            self._leave()
            self._refuse(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        counter = self._counter if self._modes else None
        self._leave()
        if counter is None or kind is not None:
            return
        try:
            total = float(counter.get_total_flops())
        except Exception as refusal:  # noqa: BLE001 - as above
            self._refuse(refusal)
            return
        if total > 0:
            self._take(total)
        else:
            self._refuse(RuntimeError("no matrix product, convolution or attention was found"))

    def _leave(self) -> None:
        while self._modes:
            try:
                self._modes.pop().__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001 - as above; the training code's own exception is on its way
                self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        try:
            self._dropped.count += 1
            notice("flops", "the operations of a step were not counted", error)
        except OUT:
            pass
