"""A count that one thread writes and another reads."""

from __future__ import annotations


class Counter:
    """A number that only grows, in an object so that its writer keeps a handle and needs no look-up."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0
