"""The values of a step under way: its loss and its gradient norm, out of what the script computes anyway."""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

from typing import Any


class StepValues:
    """The sum of what backward was called on since the last step, and the norm that gradients were clipped by.

    With gradient accumulation a script scales the loss of each micro-batch to its share, so the sum is the step's. Only
    PyTorch's own tensors are taken: adding up a `DTensor` could start a collective.
    """

    def __init__(self) -> None:
        self._loss: Any = None
        self._scaled: tuple[int, Any] | None = None
        self._norms: list[Any] = []

    def scaled(self, loss: Any, result: Any) -> None:
        """Note that mixed precision scaled a loss: the one before is the loss."""
        self._scaled = id(result), loss

    def backward(self, tensors: Any) -> bool:
        """Add what backward was called on; return whether it is a loss: one number."""
        tensor = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0] == id(tensor):
            tensor = scaled[1]
        kind = type(tensor)
        if f"{kind.__module__}.{kind.__name__}" != "torch.Tensor" or tensor.numel() != 1:
            return False
        loss = tensor.detach()
        self._loss = loss if self._loss is None else self._loss + loss
        return True

    def clipped(self, norm: Any) -> None:
        """Note the norm of gradients that were clipped."""
        self._norms.append(norm)

    def take(self) -> dict[str, Any]:
        """Return what the step is logged with, and begin anew; of gradients clipped in parts no part is the norm."""
        loss, norms = self._loss, self._norms
        self.discard()
        values = {} if loss is None else {"loss": loss}
        return {**values, "grad_norm": norms[0]} if len(norms) == 1 else values

    def discard(self) -> None:
        """Begin anew: what came so far belongs to another optimizer."""
        self._loss, self._norms = None, []
