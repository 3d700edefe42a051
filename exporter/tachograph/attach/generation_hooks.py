"""The hooks into what generates samples to train on, and into what rates them: transformers, vLLM, TRL's trainers."""

# ruff: noqa: ANN401 - what is hooked is not imported here, and has no type

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tachograph.attach.in_place import in_place_of
from tachograph.attach.observer import Observer
from tachograph.attach.on_import import when_imported
from tachograph.catalog.rank import PhaseName

Methods = Mapping[str, PhaseName]

OF_TRAINERS: Methods = {"_generate_and_score_completions": "generate", "_calculate_rewards": "reward"}
"""The methods of TRL's GRPOTrainer and RLOOTrainer that make samples, and rate them within that."""

PLACES: Mapping[str, tuple[str, Methods]] = {
    "transformers.generation.utils": ("GenerationMixin", {"generate": "generate"}),
    "vllm.entrypoints.llm": ("LLM", {"generate": "generate", "chat": "generate"}),
    "trl.trainer.grpo_trainer": ("GRPOTrainer", OF_TRAINERS),
    "trl.trainer.rloo_trainer": ("RLOOTrainer", OF_TRAINERS),
}
"""Module -> class and its methods."""


def hook_generation(_: Any, observer: Observer) -> None:
    """Have what generates reported to `observer`, whoever imports it."""
    for module, (name, methods) in PLACES.items():
        when_imported(module, lambda found, name=name, methods=methods: _wrap(found, name, methods, observer))  # type: ignore[misc]


def _wrap(module: Any, name: str, methods: Methods, observer: Observer) -> None:
    owner = getattr(module, name)
    for method, phase in methods.items():
        if callable(original := getattr(owner, method, None)):
            setattr(owner, method, observed(original, observer, phase, counts=methods is OF_TRAINERS))


def observed(original: Callable[..., Any], observer: Observer, phase: PhaseName, *, counts: bool = False) -> Any:
    """Return a method as a phase of the training, which is called exactly once, whatever becomes of us.

    `counts`: its object is a trainer that counts tokens.
    """

    @in_place_of(original)
    def generate(*arguments: Any, **named: Any) -> Any:
        if not observer.generating(phase):
            return original(*arguments, **named)
        try:
            result = original(*arguments, **named)
        except BaseException as error:
            observer.generated(phase, error)
            raise
        observer.generated(phase)
        if counts:
            observer.samples_made(arguments[0])
        return result

    return generate
