"""The optimizers of a script: which of them makes its steps, which models they train, how many steps they made."""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

from tachograph.client.core.scalars import Reading, number, read


class Optimizers:
    """The optimizers that a script has made, none of which is kept alive.

    `trained_seen`: a module was found that one of them trains.
    """

    def __init__(self) -> None:
        self._made: list[ref[Any]] = []
        self._trained: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._primary: ref[Any] | None = None
        self._parameter: ref[Any] | None = None
        self._newer: list[ref[Any]] = []
        self._versions: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.trained_seen = False

    def made(self, optimizer: Any) -> None:
        """Remember an optimizer."""
        self._made = [each for each in self._made if each() is not None]
        self._made.append(ref(optimizer))
        self._newer = [each for each in self._newer if each() is not None]
        self._newer.append(ref(optimizer))
        self._trained.clear()

    @property
    def one_counts(self) -> bool:
        """Whether there is one that counts."""
        return self._primary is not None and self._primary() is not None

    def choose(self, optimizer: Any) -> None:
        """Have this one count from now on."""
        self._primary = ref(optimizer)
        self._newer.clear()
        parameter = next((each for group in optimizer.param_groups for each in group["params"]), None)
        self._parameter = None if parameter is None else ref(parameter)

    @property
    def model_is_gone(self) -> bool:
        """Whether the one that counted is gone, and what it has trained: a training is over."""
        return self._parameter is not None and self._parameter() is None and not self.one_counts

    def begins_another(self, optimizer: Any) -> bool:
        """Whether this one, which is to count, trains another model: the one before is gone, or kept by the script.

        What was made before the last step is an optimizer of the same training, such as that of a second phase.
        """
        primary = None if self._primary is None else self._primary()
        if primary is None or not any(each() is optimizer for each in self._newer):
            return self.model_is_gone
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return not any(id(parameter) in own for group in primary.param_groups for parameter in group["params"])

    def counts(self, optimizer: Any) -> bool:
        """Whether a step of this optimizer is a step of the training."""
        return self._primary is not None and self._primary() is optimizer

    def counted(self) -> None:
        """Note a step of the training: optimizers made so far belong to it."""
        self._newer.clear()

    def updated(self) -> Any:
        """Return the optimizer that counts, else another, if its parameters were updated since the last call."""
        found = None
        for optimizer in [each() for each in self._made]:
            if optimizer is not None:
                version = next(parameter for group in optimizer.param_groups for parameter in group["params"])._version
                if self._versions.get(optimizer) != version and (found is None or self.counts(optimizer)):
                    found = optimizer
                self._versions[optimizer] = version
        return found

    @property
    def flat(self) -> bool:
        """Whether none of them holds a parameter with two dimensions or more: they have flat copies of a model's."""
        made = [optimizer for each in self._made if (optimizer := each()) is not None]
        return all(each.dim() < 2 for one in made for group in one.param_groups for each in group["params"])

    def is_trained(self, module: Any) -> bool:
        """Whether a module holds the first parameter that the optimizer trains whose updates count."""
        parameter = None if self._parameter is None else self._parameter()
        return parameter is not None and any(each is parameter for each in module.parameters())

    def train(self, module: Any) -> bool:
        """Whether a module holds everything that one of them trains: neither a teacher nor a part of the model does."""
        known = self._trained.get(module)
        if known is None:
            own = {id(parameter) for parameter in module.parameters()}
            known = self._trained[module] = any(
                all(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])
                for optimizer in (each() for each in self._made)
                if optimizer is not None
            )
            self.trained_seen |= known
        return known


def rate_of(optimizer: Any) -> float | None:
    """Return the learning rate of the first parameter group; None where there is none, or it lies on a device."""
    groups = getattr(optimizer, "param_groups", None)
    rate = groups[0].get("lr") if groups else None
    return None if getattr(rate, "is_cuda", False) else number(read(rate))


def steps_made(optimizer: Any) -> Reading:
    """Return how many steps the state says that the optimizer has made, None where it does not; waits for no device."""
    states = getattr(optimizer, "state", {}).values()
    state = next((state for state in states if "step" in state), None)
    return None if state is None else read(state["step"])
