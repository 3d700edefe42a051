"""The values of a step under way: its loss and its gradient norm, out of what the script computes anyway.

What backward is called on is a loss, but not each one is a loss of its own. Four kinds are told apart:

- the micro-batches of an accumulated step, each scaled to its share (`loss / 4`): their sum is the step's loss;
- the same without the division: their mean is;
- parts of one loss, each with a backward of its own (a discriminator's real and fake batch): their sum is;
- parts, and then their total, on which backward is called again (a loss in chunks): the total is.
"""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tachograph.client.core.scalars import Copy, Reading, number, read

LARGEST_SHARE = 1.5
"""Times its even share: what a micro-batch may be scaled by and still be taken for a part, not for a whole loss."""

LEAST_LOSS_SCALE = 1024
"""A power of two from here on is no weight of the loss: it keeps 16-bit gradients from vanishing."""

TOTAL_TOLERANCE = 1e-3
"""Relative: how closely a total matches the sum of its parts."""

LEAST_PARTS = 2
"""Parts that a total has: of one part it could not be told from the next micro-batch."""

STEPS_TO_LEARN = 3
"""Steps whose numbers must agree on which losses are totals."""

MOST_BACKWARDS = 1024
"""Losses kept for one step; of a step with more backward passes the loss is not known."""

GRAPH_DEPTH = 4
"""Operations before backward that are looked at for a factor."""

unpacked_by_hooks = False
"""Whether the script has hooks of its own for what graphs save, as non-reentrant activation checkpointing does. Set by
`torch_hooks`, for the process: such hooks are PyTorch's for all graphs of a thread."""


class StepValues:
    """The losses that backward was called on since the last step, and the norm that gradients were clipped by.

    Only PyTorch's own tensors are taken: adding up a `DTensor` could start a collective. `made_of` says what the last
    step's loss was made of, "" where it is that of one backward pass.
    """

    def __init__(self) -> None:
        self.made_of = ""
        self._losses: list[Any] = []
        self._factor: float | None = None
        self._closed = False
        self._taken = False
        self._scaled: tuple[int, Any] | None = None
        self._norms: list[Any] = []
        self._totals = Totals()

    def scaled(self, loss: Any, result: Any) -> None:
        """Note that mixed precision scaled a loss: the one before is the loss."""
        self._scaled = id(result), loss

    def backward(self, tensors: Any) -> None:
        """Take what backward was called on, if it is a loss: one number."""
        tensor = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        self._taken = False
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0] == id(tensor):
            tensor = scaled[1]
        kind = type(tensor)
        if f"{kind.__module__}.{kind.__name__}" != "torch.Tensor" or tensor.numel() != 1 or self._closed:
            return
        try:
            factor, loss_scale = factors(tensor.grad_fn)
        except (RuntimeError, AttributeError):  # a graph whose numbers are freed, or without names
            factor, loss_scale = None, 1.0
        if not self._losses:
            self._factor = factor
        if len(self._losses) <= MOST_BACKWARDS:  # a copy: the script may add up what it has detached, in place
            self._taken = True
            self._losses.append(tensor.detach().clone() if loss_scale == 1 else tensor.detach() / loss_scale)

    def failed(self) -> None:
        """Forget the last backward pass, which ended with an exception."""
        if self._taken:
            del self._losses[-1]

    def zeroed(self, *, within_update: bool) -> None:
        """Note that the gradients were zeroed: what came so far is no part of the step.

        Within an optimizer's step, which evaluates the loss as often as it likes, the first one is the step's.
        """
        if within_update:
            self._closed = bool(self._losses)
        else:
            self.discard()

    def clipped(self, norm: Any) -> None:
        """Note the norm of gradients that were clipped."""
        self._norms.append(norm)

    def take(self, batches: int) -> dict[str, Any]:
        """Return what the step is logged with, and begin anew; `batches` were delivered for it, 0: none was seen.

        Of gradients clipped in parts no part is the norm.
        """
        losses, norms, factor = self._losses, self._norms, self._factor
        self.discard()
        values = {"grad_norm": norms[0]} if len(norms) == 1 else {}
        loss = self._loss(losses, batches, factor)
        return values if loss is None else {"loss": loss, **values}

    def discard(self) -> None:
        """Begin anew: what came so far belongs to another optimizer."""
        self._losses, self._norms, self._factor, self._closed = [], [], None, False

    def _loss(self, losses: list[Any], batches: int, factor: float | None) -> Any:
        """Return the loss of the step; None where it is not known."""
        if len(losses) > MOST_BACKWARDS or not losses:
            return None
        if len(losses) > max(batches, LEAST_PARTS):
            chosen = self._totals.among(losses)
            if chosen is None:
                return None
            losses = [losses[index] for index in chosen]
        count = len(losses)
        if count > 1 and losses[0].element_size() < 4:
            losses = [loss.float() for loss in losses]  # 16 bits would lose the sum's last digits
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        if count == 1:
            self.made_of = ""
        elif count <= batches and (factor is None or factor > LARGEST_SHARE / count):
            self.made_of = f"the mean of {count} micro-batches"
            total = total / count
        else:
            self.made_of = f"the sum of {count} backward passes"
        return total


class Totals:
    """Which of a step's losses are totals of others, learned from the numbers of a few steps that agree in it.

    A GPU's numbers come some steps later, without being waited for; until then nothing is known.
    """

    def __init__(self) -> None:
        self._known: dict[int, list[int]] = {}
        self._read: dict[int, list[list[Reading]]] = {}

    def among(self, losses: Sequence[Any]) -> list[int] | None:
        """Return the indices of those that make up the loss, None while that is not known."""
        count = len(losses)
        if (known := self._known.get(count)) is not None:
            return known
        steps = self._read.setdefault(count, [])
        steps.append([read(loss) for loss in losses])
        if not all(isinstance(one, float) or (isinstance(one, Copy) and one.ready()) for step in steps for one in step):
            del steps[STEPS_TO_LEARN:]  # what a GPU has still to say is asked again at the next step
            return None
        found = [list(_without_parts([number(one) or 0.0 for one in step])) for step in steps]
        agree = found.count(found[0]) == len(found)
        if len(steps) >= STEPS_TO_LEARN or not agree:
            self._known[count] = found[0] if agree else list(range(count))
            del self._read[count]
        return found[-1] if len(found[-1]) == count else self._known.get(count)


def _without_parts(values: Sequence[float]) -> Iterator[int]:
    """Yield the indices of all values but those that a later one is the total of."""
    first, total = 0, 0.0
    for index, value in enumerate(values):
        if index - first >= LEAST_PARTS and math.isclose(value, total, rel_tol=TOTAL_TOLERANCE):
            yield index
            first, total = index + 1, 0.0
        else:
            total += value
    yield from range(first, len(values))


def factors(node: Any, depth: int = GRAPH_DEPTH) -> tuple[float | None, float]:
    """Return what a script multiplied its loss by, None for nothing, and the loss scale besides, 1 for none.

    Read off the last operations of the loss's graph: quotients, and products with a number on the host. Of a weighted
    sum the largest weight counts; a sum that is divided by no more than it has elements is a mean. A divisor on a
    device is not read, and taken for a number of tokens over all micro-batches: a factor of 0.
    """
    name = "" if node is None or not depth else node.name()
    rest = [each for each, _ in node.next_functions if each is not None] if name else []
    if name.startswith("Add"):
        found = [factors(each, depth - 1)[0] for each in rest]
        return (None if None in found else max(filter(None, found), default=0.0)), 1.0
    if not rest or not name.startswith(("Div", "Mul", "ToCopy")):
        return None, 1.0
    factor, loss_scale = factors(rest[0], depth - 1)
    if name.startswith("ToCopy"):  # another type of number
        return factor, loss_scale
    other = _saved_other(node)
    if other is None or other.numel() != 1 or not other.is_cpu:
        return (0.0 if name.startswith("Div") and other is not None else factor), loss_scale
    by = other.item()
    if name.startswith("Div"):
        by = 1.0 if _is_mean(rest[0], by) else 1 / by if by else 0.0
    if by >= LEAST_LOSS_SCALE and math.frexp(by)[0] == 0.5:
        return factor, loss_scale * by
    return (factor or 1.0) * by, loss_scale


def _is_mean(total: Any, divisor: float) -> bool:
    """Whether a sum is divided by no more than it has elements: a mean of those that are not masked."""
    return bool(total.name().startswith("Sum") and divisor <= math.prod(total._saved_self_sym_sizes))


def _saved_other(node: Any) -> Any:
    """Return what a graph has saved of a factor; None where reading it would call the script's hooks."""
    if unpacked_by_hooks:
        try:
            node._raw_saved_other.register_hooks(_as_is, _as_is)
        except RuntimeError:  # it has hooks
            return None
    return node._saved_other


def _as_is(saved: Any) -> Any:
    return saved
