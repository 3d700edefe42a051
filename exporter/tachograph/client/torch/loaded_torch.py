"""torch, where the training process has already loaded it; the client never imports it."""

from __future__ import annotations

import sys
from typing import Any

from tachograph.client.core.notice import raised_by_signal


def loaded_torch() -> Any:  # noqa: ANN401 - a module that may be absent has no type
    """Return the torch module, or None; it may be half imported, so callers expect AttributeError."""
    return sys.modules.get("torch")


def in_use(part: str) -> Any:  # noqa: ANN401
    """Return `torch.<part>` (`cuda` or `distributed`) if the training code has initialised it, else None.

    Asked in this order: `torch.cuda.is_available()` initialises CUDA's driver, which a process that forks its ranks, or
    that has yet to set CUDA_VISIBLE_DEVICES, must not have done.
    """
    try:
        module = getattr(loaded_torch(), part)
        return module if module.is_initialized() and module.is_available() else None
    except Exception as error:
        if raised_by_signal(error):
            raise
        return None
