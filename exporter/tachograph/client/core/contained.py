"""A decorator for public calls: a fault of ours costs a measurement, never the training."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tachograph.client.core.compiled import whole_graph
from tachograph.client.core.notice import OUT, notice, raised_by_signal

Call = TypeVar("Call", bound=Callable[..., Any])


def contained(call: Call) -> Call:
    """Make `call` return None where it would raise, log it once, and do nothing in a graph that must not break."""
    name = call.__qualname__

    @functools.wraps(call)
    def safe(*given: object, **named: object) -> object:
        try:
            return call(*given, **named)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            try:
                if raised_by_signal(error):
                    raise
                report_fault(call, error, name)
                _count(given)
            except OUT:
                pass
            return None

    def in_graph(
        *given: object, **named: object
    ) -> object:  # with the very variables of `safe`: see `compiled.in_graph`
        return None if whole_graph(name) else call(*given, **named)

    safe._torchdynamo_inline = in_graph  # type: ignore[attr-defined]
    return safe  # type: ignore[return-value]


def _count(given: tuple[Any, ...]) -> None:
    """Count the fault where the call is one of a recorder's own."""
    with contextlib.suppress(IndexError, AttributeError):
        given[0]._calls.dropped.count += 1


def report_fault(call: Callable[..., Any], error: Exception, name: str = "") -> None:
    """Log once that `call` failed; if its arguments do not fit, with the names that do. Never raises."""
    try:
        name = name or call.__qualname__
        trace = error.__traceback__
        never_entered = isinstance(error, TypeError) and (trace is None or trace.tb_next is None)
        hint = f" (it takes {', '.join(parameters(call))})" if never_entered else ""
        notice(f"call {name}", f"{name} could not record{hint}", error)
    except Exception as fault:
        if raised_by_signal(fault):
            raise


def parameters(call: Callable[..., Any]) -> list[str]:
    """Return the names of what a method takes, `nothing` for none."""
    code = call.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    return list(names) or ["nothing"]
