"""Wrappers that stand in the place of PyTorch's own functions, and that Dynamo takes for those."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

FRAMES: list[CodeType] = []
"""The code of our wrappers and hooks, whose frames Dynamo is to leave alone."""


def in_place_of(original: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate the wrapper of a function: to Dynamo it is the function itself, in whose graph nothing can be timed."""

    def decorate(wrapper: Any) -> Any:  # noqa: ANN401 - a function, to which an attribute is added
        wrapper._torchdynamo_inline = original
        FRAMES.append(wrapper.__code__)
        return functools.update_wrapper(wrapper, original)

    return decorate
