"""Stand-ins for a recorder's calls inside functions compiled with `torch.compile`.

A call inside a graph cannot be timed, and `fullgraph=True` makes an error of whatever Dynamo cannot trace. So a graph
that must be whole sees stand-ins that do nothing, and it is logged once, during compilation, that nothing is recorded
there. Any other graph breaks at the call, which is then recorded as ever. Eager code pays nothing: Dynamo finds a
stand-in by an attribute of the function it is about to trace (`_torchdynamo_inline`, since PyTorch 2.0), and calls what
is marked constant (`torch.compiler.assume_constant_result`) for real, while it traces.
"""

# ruff: noqa: ANN401 - a stand-in returns what the call does

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import FunctionType
from typing import Any

from tachograph.client.core.notice import notice

NOTHING: nullcontext[None] = nullcontext()
"""The context manager that does nothing, in a form that Dynamo knows."""


def whole_graph(call: str) -> bool:
    """Return whether the graph being traced must not break, or may not; called by Dynamo itself."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        translator = InstructionTranslator.current_tx()
        whole = bool(translator.one_graph or getattr(translator, "error_on_graph_break", False))
    except Exception:  # noqa: BLE001 - private, and may move: then nothing is recorded, and nothing breaks
        whole = True
    if whole:
        notice("compiled call", f"{call} inside a function compiled with fullgraph=True records nothing: move it out")
    return whole


whole_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]


def in_graph(call: Callable[..., Any], stand_in: Callable[..., Any]) -> Any:
    """Have Dynamo trace `stand_in` in place of `call`, and return a copy of `call` for it to fall back on.

    A stand-in must not be a closure: Dynamo would look for its variables in `call`.
    """
    call._torchdynamo_inline = stand_in  # type: ignore[attr-defined]
    given: Any = call
    copy = FunctionType(given.__code__, given.__globals__, given.__name__, given.__defaults__, given.__closure__)
    copy.__kwdefaults__ = given.__kwdefaults__
    return copy


def unseen(call: Callable[..., Any]) -> None:
    """Give one of a recorder's calls that return something its stand-in; the others bring theirs (`contained`)."""
    name = call.__name__
    _RECORDED[name] = in_graph(call, _STAND_INS[name])


class UnseenStep:
    """A step inside a graph."""

    number = 0

    def __enter__(self) -> UnseenStep:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def log(self, /, *excess: object, **values: object) -> None:
        """Do nothing."""


_RECORDED: dict[str, Callable[..., Any]] = {}


def _unrecorded(recorder: Any, call: str) -> bool:
    return not recorder._calls.records or whole_graph(call)


def _phase(recorder: object, *given: Any, **named: Any) -> Any:
    return NOTHING if _unrecorded(recorder, "phase()") else _RECORDED["phase"](recorder, *given, **named)


def _step(recorder: object, *given: Any, **named: Any) -> Any:
    return UnseenStep() if _unrecorded(recorder, "step()") else _RECORDED["step"](recorder, *given, **named)


def _data(recorder: object, loader: Any, *given: Any, **named: Any) -> Any:
    return loader if _unrecorded(recorder, "data()") else _RECORDED["data"](recorder, loader, *given, **named)


def _collective(recorder: object, *given: Any, **named: Any) -> Any:
    return NOTHING if _unrecorded(recorder, "collective()") else _RECORDED["collective"](recorder, *given, **named)


def _count_flops(recorder: object, *given: Any, **named: Any) -> Any:
    return NOTHING if _unrecorded(recorder, "count_flops()") else _RECORDED["count_flops"](recorder, *given, **named)


_STAND_INS = {
    "phase": _phase, "step": _step, "data": _data, "collective": _collective, "count_flops": _count_flops,
}  # fmt: skip
