"""TorchScript compiles a module's hooks with it, and fails on what it cannot compile: it gets to see none of ours."""

# ruff: noqa: ANN401 - TorchScript's own arguments and answer

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tachograph.client.torch.model.layers import is_model_hook

_CREATE = "create_script_module"
"""Through this function of `torch.jit._recursive` every module passes that is scripted."""

_HOOKS = "_forward_hooks", "_forward_pre_hooks"

_seen_without: list[Callable[..., Any]] = []
"""Our function in the place of PyTorch's, once it is there."""


def hide_hooks() -> None:
    """Have TorchScript leave out our hooks from now on, for good: copies of a model keep theirs when we are gone."""
    recursive = sys.modules.get("torch.jit._recursive")
    create = getattr(recursive, _CREATE, None)
    if create is None or _seen_without:
        return

    @functools.wraps(create)
    def without_ours(module: Any, *given: Any, **named: Any) -> Any:
        with _hidden(module):
            return create(module, *given, **named)

    _seen_without.append(without_ours)
    setattr(recursive, _CREATE, without_ours)


@contextmanager
def _hidden(model: Any) -> Iterator[None]:
    """Take our hooks out of a model and all of its modules for a while; their order stays."""
    modules = model.modules() if hasattr(model, "modules") else ()
    every = [getattr(module, kind, None) for module in modules for kind in _HOOKS]
    whole = [(hooks, dict(hooks)) for hooks in every if hooks and any(map(is_model_hook, hooks.values()))]
    for hooks, known in whole:
        for number, hook in known.items():
            if is_model_hook(hook):
                del hooks[number]
    try:
        yield
    finally:
        for hooks, known in whole:
            hooks.clear()
            hooks.update(known)
