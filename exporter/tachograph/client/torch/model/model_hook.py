"""A hook on somebody's model, which may be copied or saved while it hangs there."""

from __future__ import annotations

from collections.abc import Callable


class ModelHook:
    """Calls what it was given. A copy of it, made by `copy.deepcopy` or pickle with its model, does nothing.

    Without it the copy of a model would take along whatever the hook belongs to, or fail on a lock or a socket in it.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object] | None = None) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> None:
        """Do as the hook does, and answer nothing: an answer would change what the model computes."""
        if self._call is not None:
            self._call(*arguments)

    def __reduce__(self) -> tuple[type[ModelHook], tuple[()]]:
        return ModelHook, ()
