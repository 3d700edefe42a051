"""What a copy of a model does to the recorder in it: `copy.deepcopy` shares it, like a logger; pickle loses it."""

from __future__ import annotations

from typing import TypeVar

Self = TypeVar("Self", bound="Uncopied")


class Uncopied:
    """Part of a record, of which there is one in a process: a copy is the same object.

    The teacher or the average of a model, made by `copy.deepcopy`, goes on in the same loop and says so to the same
    recorder. A pickle goes to another process, whose record is its own: each class says in `__reduce__` what does
    nothing in its place.
    """

    __slots__ = ()

    def __copy__(self: Self) -> Self:
        return self

    def __deepcopy__(self: Self, memo: object) -> Self:
        return self
