"""What is used of PyTorch's objects, for the type checker alone: never imported at run time."""

# ruff: noqa: D102 - PyTorch documents its methods

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Tensor(Protocol):
    """`torch.Tensor`."""

    is_cpu: bool
    is_cuda: bool
    device: object

    def numel(self) -> int: ...
    def element_size(self) -> int: ...
    def item(self) -> float: ...
    def detach(self) -> Tensor: ...
    def to(self, device: str, *, non_blocking: bool) -> Tensor: ...


class Bucket(Protocol):
    """`torch.distributed.GradBucket`."""

    def index(self) -> int: ...
    def is_last(self) -> bool: ...
    def buffer(self) -> Tensor: ...


class Future(Protocol):
    """`torch.futures.Future`."""

    def value(self) -> object: ...
    def add_done_callback(self, callback: Callable[[Future], None]) -> None: ...
