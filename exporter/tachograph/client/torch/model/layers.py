"""The layers of a model: its parameters and modules under names short enough for a label."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from tachograph.client.core.torch_types import Module, Tensor

NAME_LENGTH = 64

_WRAPPERS = frozenset({
    "module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module",
})  # fmt: skip
"""Names that wrappers put into a path: DDP, torch.compile, FSDP, activation checkpointing, Lightning."""


def layer_of(parameter: str) -> str:
    """Return the layer a parameter's path belongs to: up to its first number, else its first two modules.

    `model.layers.17.self_attn.q_proj.weight` is `model.layers.17`, `model.embed_tokens.weight` is `model.embed_tokens`.
    """
    parts = _path(parameter)
    for position, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: position + 1])[-NAME_LENGTH:]
    return ".".join(parts[: min(2, max(len(parts) - 1, 1))])[-NAME_LENGTH:]


def parameters_by_layer(model: Module) -> list[tuple[str, ref[Tensor]]]:
    """Return each trainable parameter with its layer, weakly: whoever looks at a model must not keep it alive."""
    return [(layer_of(name), ref(one)) for name, one in model.named_parameters() if one.requires_grad]


def modules_by_layer(model: Module, limit: int) -> dict[str, ref[Module]]:
    """Return the module of each layer, the outermost of wrapped ones; of more than `limit` an even selection."""
    names = dict.fromkeys(layer_of(name) for name, _ in model.named_parameters())
    found: dict[str, ref[Module]] = {}
    for name, module in model.named_modules():
        path = ".".join(_path(name))[-NAME_LENGTH:]
        if path in names and path not in found:
            found[path] = ref(module)
    kept = [name for name in names if name in found]
    if len(kept) > limit:
        kept = [kept[position * len(kept) // limit] for position in range(limit)]
    return {name: found[name] for name in kept}


def local(tensor: Any) -> Tensor:  # noqa: ANN401 - a Tensor, or a DTensor, which has one inside
    """Return the tensor itself, or this rank's shard of a DTensor: a look must never start a collective."""
    inner: Tensor = getattr(tensor, "_local_tensor", tensor)
    return inner.detach()


class ModelHook:
    """Calls what it was given. A copy of it, made by `copy.deepcopy` or pickle with its model, does nothing.

    Without it the copy of a model would take along whatever the hook belongs to, or fail on a lock or a socket in it;
    and a pickled model would load only where this package is installed. It has no `__slots__`: Dynamo of PyTorch 2.4
    cannot read them, which is an error in a model that is compiled with `fullgraph=True`.
    """

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call
        self.__name__ = "tachograph"  # for messages of PyTorch about the hooks of a module

    def __call__(self, *arguments: object) -> None:
        """Do as the hook does, and answer nothing: an answer would change what the model computes."""
        self._call(*arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (nullcontext(), "__exit__")  # takes anything, does nothing, answers None


def is_model_hook(hook: object) -> bool:
    """Return whether a hook is one of these, or what a copy of one is."""
    return isinstance(hook, ModelHook) or getattr(hook, "__func__", None) is nullcontext.__exit__


def unwrapped(optimizer: Any) -> Any:  # noqa: ANN401 - Accelerate's and Lightning's wrappers have the real one inside
    """Return the optimizer that has hooks."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if hasattr(inner, "register_step_pre_hook") else optimizer


def _path(name: str) -> list[str]:
    return [part for part in name.split(".") if part and part not in _WRAPPERS] or [name]
