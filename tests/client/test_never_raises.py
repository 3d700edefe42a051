"""Whatever a call is given, in whatever state: it returns. The calls are found by introspection, so none is forgotten.

Run as a file by the tests of real processes, which `exercise` a recorder where pytest cannot be: in a forked child, in
a signal handler, at the interpreter's end. `TACHOGRAPH_EXAMPLES=20000` looks longer than CI does.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tachograph
from tachograph.catalog.rank import OPERATIONS, PHASES, STEP_TAGS
from tachograph.client.active import ActiveCalls
from tachograph.client.core.steps import Step
from tachograph.client.no_op import NoOpCalls
from tachograph.client.recorder import Recorder
from tachograph.findings.limits import LIMIT_NAMES

EXAMPLES = int(os.environ.get("TACHOGRAPH_EXAMPLES", "0"))
STATES = ("fresh", "in a step", "closed", "disabled", "no exporter", "a dead exporter", "a stalled one", "a mad one")


class Hidden(Exception):  # noqa: N818 - it is a value here
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise Worst

    __repr__ = __str__


class Worst(Exception):  # noqa: N818
    """Raised by everything that is asked of a nasty object; if pytest shows this, a call has let it through."""


def refuse(*arguments: Any, **named: Any) -> Any:
    raise Worst


REFUSED = (
    "eq", "ne", "lt", "le", "hash", "str", "repr", "float", "int", "index", "bool", "len", "iter", "next", "getattr",
    "format", "contains", "getitem", "call", "enter", "exit", "fspath", "add", "radd", "mod", "sub", "mul", "abs",
    "instancecheck", "reduce_ex", "deepcopy", "length_hint",
)  # fmt: skip
ALL = {f"__{name}__": refuse for name in REFUSED}
AWKWARD = (
    "metrics", "named_parameters", "param_groups", "convention", "is_cuda", "_orig_mod", "optimizer", "state",
    "register_step_pre_hook",
)  # fmt: skip
NO_CLASS = {"__class__": property(refuse)}


def dead_proxy() -> Any:
    return weakref.proxy(type("Gone", (), {})())


def inside_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def endless() -> Any:
    return itertools.count()


def numpy_array() -> Any:
    return pytest.importorskip("numpy").zeros(3)


def numpy_object() -> Any:
    return pytest.importorskip("numpy").array([object(), None])


class Colour(enum.Enum):
    RED = "forward"


NASTY: tuple[Callable[[], Any], ...] = (
    type("Everything", (), ALL),
    type("Classless", (), ALL | NO_CLASS),
    lambda: type("Text", (str,), ALL | dict.fromkeys(("strip", "isprintable", "isdecimal", "encode"), refuse))("eval"),
    lambda: type("Name", (str,), {"__eq__": refuse, "__hash__": refuse})("forward"),
    lambda: type("Tag", (str,), ALL)("gc"),
    lambda: type("Whole", (int,), ALL)(5),
    lambda: type("Number", (float,), ALL)(1.5),
    lambda: type("Pair", (tuple,), ALL)((1, 2)),
    lambda: type("Table", (dict,), ALL | {"items": refuse, "keys": refuse})(a=1),
    type("Error", (Hidden,), ALL),
    type("Awkward", (), dict.fromkeys(AWKWARD, property(refuse))),
    lambda: SimpleNamespace(metrics=refuse),
    lambda: SimpleNamespace(write=refuse, close=refuse),
    lambda: SimpleNamespace(start=refuse, phase=refuse, observe=refuse, close=refuse),
    lambda: SimpleNamespace(named_parameters=refuse, modules=refuse, parameters=refuse),
    lambda: -(10**5000), dead_proxy, inside_itself, endless, numpy_array, numpy_object, threading.Lock, threading.RLock,
    object, list, set,
    lambda: object, lambda: type, lambda: os, lambda: refuse, lambda: Colour.RED, lambda: (one for one in (1, 2)),
    Hidden, lambda: ValueError("\ud800"), KeyboardInterrupt, lambda: SystemExit(3),
    lambda: {1: {2: {}}}, lambda: ["forward"], lambda: b"forward", lambda: bytearray(b"\0"), lambda: memoryview(b"x"),
    lambda: Decimal("NaN"), lambda: Decimal("sNaN"), lambda: Fraction(1, 3), lambda: 1j, lambda: ..., lambda: None,
)  # fmt: skip

PLAIN = (
    0, 1, -1, True, False, 2**31, 2**53, 2**53 + 1, 10**400, 0.0, -0.0, 1.5, -2.5, math.nan, math.inf,
    -math.inf, 5e-324, "", " ", "\0", "\ud800", "\x1b[31m", "forward", "eval", "all_reduce", "gc", "hang_seconds", "7",
    "x" * 100_000, "训" * 128, *PHASES, *STEP_TAGS, *OPERATIONS, *LIMIT_NAMES,
)  # fmt: skip


class Box:
    """Holds what cannot be shown until it is used: a failing example has to be printed."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __repr__(self) -> str:
        return (
            f"Box({inspect.getsource(self.make).strip() if self.make.__name__ == '<lambda>' else self.make.__name__})"
        )


def unboxed(value: Any) -> Any:
    if isinstance(value, Box):
        return value.make()
    return [unboxed(one) for one in value] if type(value) is list else value


boxes = st.sampled_from([Box(make) for make in NASTY])
values = st.one_of(
    boxes, boxes, st.sampled_from(PLAIN), st.integers(), st.floats(), st.text(st.characters(), max_size=8),
    st.binary(max_size=8), st.lists(boxes, max_size=2),
)  # fmt: skip
LOGGED = ("loss", "grad_norm", "learning_rate", "total_steps", "no such name", "step", "self")


def public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one for one in inspect.signature(call).parameters.values() if one.kind in kinds and one.name != "self"]


def given_arguments(draw: st.DrawFn, call: Callable[..., Any], *, fitting: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments: those that the signature has; or any number of them, and a name that it does not know."""
    taken = parameters(call)
    if not fitting:
        return draw(st.lists(values, max_size=len(taken) + 2)), draw(st.dictionaries(st.just("wrong"), values))
    needed = [one.name for one in taken if one.default is one.empty]
    chosen = [one.name for one in taken if one.name not in needed and draw(st.booleans())]
    return [draw(values) for _ in needed], {name: draw(values) for name in chosen}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any]]:
    name = draw(st.sampled_from([one for one in public(Recorder) if callable(getattr(Recorder, one))]))
    fitting = name == "data" or draw(st.integers(0, 3)) > 0  # data() without a loader has nothing to return
    return name, *given_arguments(draw, getattr(Recorder, name), fitting=fitting)


@st.composite
def logs(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any]]:
    named = draw(st.dictionaries(st.sampled_from(LOGGED), values, max_size=3))
    return "log", draw(st.lists(values, max_size=1)), named


def use(result: Any) -> None:
    """Do with what a call returned what a training loop would."""
    if hasattr(result, "__enter__"):
        with result, suppress(AttributeError):
            pass


def exercise(recorder: Recorder, examples: int = 150) -> None:
    """Make calls of every kind; raise what one of them raises."""

    @settings(
        max_examples=EXAMPLES or examples, derandomize=not EXAMPLES, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.one_of(calls(), calls(), logs()))
    def returns(call: tuple[str, list[Any], dict[str, Any]]) -> None:
        name, boxed, boxed_by_name = call
        arguments, named = unboxed(boxed), {key: unboxed(value) for key, value in boxed_by_name.items()}
        if name == "close":
            return
        if name == "log":
            recorder.step().log(*arguments, **named)
            return
        with recorder.step() as step, recorder.phase("forward"):
            result = getattr(recorder, name)(*arguments, **named)
            if name != "data":  # that is the loader's own to raise: see test_a_loader_behaves_as_it_does_bare
                use(result)
            step.log(loss=1.0)
        for attribute in public(Recorder):
            getattr(recorder, attribute)
        for attribute in public(Step):
            getattr(step, attribute)

    returns()


def in_state(state: str, exporter: Any, record: Callable[..., Recorder]) -> Recorder:
    if state in ("no exporter", "a mad one"):
        exporter.stop()
        exporter.path.unlink()
    if state == "a mad one":
        exporter.answer = {"ok": True, "last_step": 10**300, "ended": "never"}
        exporter.start()
    if state == "disabled":
        return Recorder(enabled=False)
    recorder = record()
    if state in ("a dead exporter", "a stalled one"):
        exporter.wait_for()
        (exporter.stop if state.startswith("a dead") else exporter.stalled.set)()
    if state == "in a step":
        recorder.step().__enter__()
        recorder.phase("forward").__enter__()
    if state == "closed":
        recorder.close()
    return recorder


@pytest.mark.parametrize("state", STATES)
def test_any_call_with_any_arguments_returns(state: str, exporter: Any, record: Callable[..., Recorder]) -> None:
    """In every state; and afterwards the record goes on: frames are whole, and steps are counted."""
    recorder = in_state(state, exporter, record)
    exercise(recorder)
    if state in ("closed", "disabled"):
        return
    assert not recorder._calls.sender.over
    if state in ("fresh", "in a step", "a mad one"):
        with recorder.step():
            pass
        completed = recorder._calls.state.step.completed
        state = exporter.wait_for(where=lambda frame: frame["metrics"]["steps_total"] >= completed)
        assert state["dropped"] > 0
        assert json.dumps(state, allow_nan=False)


@settings(max_examples=EXAMPLES or 80, derandomize=not EXAMPLES, deadline=None, database=None)
@given(st.data())
def test_any_constructor_returns(data: st.DataObject) -> None:
    """Each argument that cannot be right costs itself alone; what comes out is a recorder."""
    names = [one.name for one in parameters(Recorder.__init__)]
    chosen = data.draw(st.lists(st.sampled_from([*names, "wrong"]), max_size=4, unique=True))
    named = {name: data.draw(values) for name in chosen}
    positional = data.draw(st.lists(values, max_size=1))
    recorder = tachograph.Recorder(*unboxed(positional), **{name: unboxed(value) for name, value in named.items()})
    assert isinstance(recorder, Recorder)
    with recorder.step() as step:
        step.log(loss=1.0)
    recorder.close()


@settings(max_examples=EXAMPLES or 40, derandomize=not EXAMPLES, deadline=None, database=None)
@given(error=values, other=values)
def test_close_returns(error: Any, other: Any) -> None:
    """With any error, once and again, and every call after it."""
    recorder = Recorder(socket="/nonexistent/rank.sock")
    recorder.close(unboxed(error))
    recorder.close(unboxed(other))
    assert recorder._calls.sender is None or recorder._calls.sender.over


def outcome(use: Callable[[], Any]) -> Any:
    """Return what a use of a loader gives, or the type of what it raises."""
    try:
        return use()
    except Exception as error:  # noqa: BLE001
        return type(error)


@pytest.mark.parametrize("make", NASTY)
def test_a_loader_behaves_as_it_does_bare(make: Callable[[], Any], record: Callable[..., Recorder]) -> None:
    """Iteration, length, truth and attributes of `data(loader)` are the loader's, down to what they raise."""
    recorder = record()
    uses: Iterable[Callable[[Any], Any]] = (
        lambda loader: len(list(itertools.islice(iter(loader), 3))), len, bool,
        lambda loader: loader.no_such_attribute, lambda loader: loader.write is not None,
    )  # fmt: skip
    for look in uses:
        bare = outcome(lambda look=look: look(make()))
        assert outcome(lambda look=look: look(recorder.data(make()))) == bare, (make, look)


def test_both_implementations_have_the_same_calls(record: Callable[..., Recorder]) -> None:
    """Whoever switches recording off meets no other interface: the same names, and the same arguments."""
    assert public(type(record(enabled=False))) == public(type(record()))
    for name in public(NoOpCalls):
        if callable(method := getattr(NoOpCalls, name)):
            ours, active = ([one.name for one in parameters(call)] for call in (method, getattr(ActiveCalls, name)))
            assert ours == active, name
            assert name not in public(Recorder) or set(ours) - {"wanted"} <= {
                one.name for one in parameters(getattr(Recorder, name))
            } | {"payload"}, name


def test_every_public_name_is_known_here() -> None:
    """Every public name is tested; a name that is neither method nor property of `Recorder` is new here.

    `resume_from` may raise: it is called before training, for what it returns.
    """
    assert set(tachograph.__all__) == {"Recorder", "__version__", "resume_from"}
    for name in public(Recorder):
        kind = inspect.getattr_static(Recorder, name)
        assert inspect.isfunction(kind) or isinstance(kind, property), name
