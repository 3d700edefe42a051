"""Whether a script evaluates: by the mode of what it trains, and by loaders that are never trained on."""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

from typing import Any
from weakref import ref

from tachograph.attach.optimizers import Optimizers

UNUSED = 2
"""Batches in a row without a backward after which a loader is one for evaluation, if it was never trained on so far, or
the model is in evaluation mode. More, where a step of the script takes more: they may all be fetched first."""


class LoaderState:
    """One loader, and whether it is trained on."""

    def __init__(self) -> None:
        self.trained = False
        self.unused = 0

    def is_unused(self, batches_per_step: int) -> bool:
        """Whether more batches in a row came without a backward than a step takes."""
        return self.unused >= max(UNUSED, batches_per_step + 1)


class EvaluationMode:
    """The model that is in evaluation mode, if one is that the script trains."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._model: ref[Any] | None = None
        self._largest = 0

    def begins(self, module: Any, *, guess: bool) -> bool:
        """Note that a module was put into evaluation mode; return whether an evaluation begins with it.

        Where no module is known that an optimizer trains, as all have flat copies of the parameters, the largest one so
        far may be a `guess`.
        """
        if self.on or not (self._optimizers.train(module) or (guess and self._is_largest(module))):
            return False
        self._model = ref(module)
        return True

    def ends(self, module: Any) -> bool:
        """Note that one is back in training mode; return whether an evaluation ends with it."""
        trains = self._optimizers.train(module)
        if self._model is None or not (trains or self._model() is module):
            return False
        self._model = None
        return True

    def over(self) -> None:
        """Note that training goes on, in whatever mode: the script trains in evaluation mode, or forgot to end it."""
        self._model = None

    @property
    def on(self) -> bool:
        """Whether the model is in evaluation mode; some put it back into training mode without `train()`."""
        if self._model is not None and getattr(self._model(), "training", True):
            self._model = None
        return self._model is not None

    def _is_largest(self, module: Any) -> bool:
        if self._optimizers.trained_seen or not self._optimizers.flat:
            return False
        size = sum(1 for parameter in module.parameters() if parameter.requires_grad)
        self._largest = max(self._largest, size)
        return 0 < size == self._largest
