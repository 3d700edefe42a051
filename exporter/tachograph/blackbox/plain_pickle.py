"""Reads pickles of plain values: dicts, lists, tuples, texts, numbers, None. Nothing in a file is imported or called.

Every opcode is held against a list of allowed ones before the unpickler sees the file, so that a file that wants more
is refused whole, and no memo index makes the unpickler allocate more than the file justifies.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

LARGEST_MEMO = 1 << 20
"""Highest memo index: the unpickler allocates 16 bytes for each index below it, and 2,000 entries need some 10,000."""

ALLOWED = frozenset((
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2",
    "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
    "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "EMPTY_DICT", "EMPTY_LIST",
    "EMPTY_TUPLE", "DICT", "LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM",
    "SETITEMS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "POP", "POP_MARK",
))  # fmt: skip
"""Names of the opcodes that build plain values; GLOBAL, REDUCE, BUILD, INST, OBJ, PERSID and the rest are missing."""

FAULTS = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError,
    MemoryError, RecursionError,
)  # fmt: skip
"""What a damaged file makes the unpickler raise."""


class NotPlainError(ValueError):
    """The file holds something else than plain values."""


def load(data: bytes) -> object:
    """Return the value of a pickle; raises NotPlainError, or ValueError where the file is damaged."""
    _check(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except NotPlainError:
        raise
    except FAULTS as error:
        raise ValueError(f"damaged: {type(error).__name__}") from error


def salvage(data: bytes) -> object:
    """Return what a pickle that was cut short holds up to the cut; None where that is nothing."""
    stack: list[object] = []
    memo: dict[int, object] = {}
    try:
        for opcode, argument in _opcodes(data):
            if opcode not in ALLOWED or opcode == "STOP":
                break
            _step(opcode, argument, stack, memo)
    except FAULTS:
        pass
    while any(one is _MARK for one in stack):
        _close(stack)
    return stack[0] if stack else None


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that finds no class, if ever the check before it lets a name through."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise NotPlainError(f"wants {module}.{name}")

    def persistent_load(self, _: object) -> NoReturn:
        raise NotPlainError("wants an outside object")


def _sized(prefix: bytes, length_bytes: int, most: int) -> bytes:
    branches = (re.escape(length.to_bytes(length_bytes, "little")) + b".{%d}" % length for length in range(most))
    return re.escape(prefix) + b"(?:" + b"|".join(branches) + b")"


_COMMON = re.compile(
    b"(?:"
    + b"|".join(
        (
            rb"[}\])(Ntldaesu0.\x85-\x89\x94]",
            rb"[Khq\x80].",
            rb"M..",
            rb"[Jj]....",
            rb"r..[\x00-\x0f]\x00",  # an index below LARGEST_MEMO
            rb"[G\x95]........",
            _sized(b"\x8a", 1, 10),
            _sized(b"X", 4, 256),
            _sized(b"\x8c", 1, 256),
        )
    )
    + b"){1,1000}",  # not all at once: each repetition keeps its place to go back to
    re.DOTALL,
)
"""A thousand of the opcodes that nearly all of a dump consists of: the check of a file costs less than its reading."""


def _check(data: bytes) -> None:
    at = 0
    while at < len(data):
        found = _COMMON.match(data, at)
        if found:
            at = found.end()
        elif data[at : at + 1] == b"X":  # a long text
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        else:
            break
    if at == len(data):
        return
    try:
        for opcode, argument in _opcodes(data):
            if opcode not in ALLOWED:
                raise NotPlainError(f"holds more than plain values ({opcode})")
            if opcode in ("PUT", "LONG_BINPUT") and not 0 <= int(str(argument)) < LARGEST_MEMO:
                raise NotPlainError("a memo index without reason")
    except NotPlainError:
        raise
    except FAULTS as error:
        raise ValueError("damaged or cut short") from error


def _opcodes(data: bytes) -> Iterator[tuple[str, object]]:
    """Yield name and argument of each opcode up to the first fault."""
    opcodes = pickletools.genops(data)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged text of protocol 0 may look like an invalid escape
            found = next(opcodes, None)
        if found is None:
            return
        yield found[0].name, found[1]


_MARK = object()


def _close(stack: list[object]) -> None:
    """Put what stands after the last mark into the container before it."""
    at = max(index for index, one in enumerate(stack) if one is _MARK)
    items = stack[at + 1 :]
    del stack[at:]
    holder = stack[-1] if stack else None
    if isinstance(holder, dict):
        _fill(holder, items)
    elif isinstance(holder, list):
        holder.extend(items)


def _fill(holder: dict[object, object], items: list[object]) -> None:
    for key, value in zip(items[::2], items[1::2], strict=False):
        if isinstance(key, (str, int)):
            holder[key] = value


def _since_mark(stack: list[object]) -> list[object]:
    at = max(index for index, one in enumerate(stack) if one is _MARK)
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _as_dict(items: list[object]) -> dict[object, object]:
    made: dict[object, object] = {}
    _fill(made, items)
    return made


_CONSTANT: Mapping[str, Callable[[], object]] = {
    "MARK": lambda: _MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_MARKED: Mapping[str, Callable[[list[object]], object]] = {"DICT": _as_dict, "LIST": list, "TUPLE": tuple}


def _step(name: str, argument: object, stack: list[object], memo: dict[int, object]) -> None:
    if name in ("PROTO", "FRAME"):
        return
    if name in _CONSTANT:
        stack.append(_CONSTANT[name]())
    elif name in _MARKED:
        items = _since_mark(stack)
        stack.append(_MARKED[name](items))
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        length = int(name[-1])
        stack[-length:] = [tuple(stack[-length:])]
    elif name in ("APPENDS", "SETITEMS"):
        _close(stack)
    elif name in ("APPEND", "SETITEM"):
        stack.insert(-1 if name == "APPEND" else -2, _MARK)
        _close(stack)
    elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
        memo[len(memo) if name == "MEMOIZE" else int(str(argument))] = stack[-1]
    elif name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[int(str(argument))])
    elif name == "POP":
        stack.pop()
    elif name == "POP_MARK":
        _since_mark(stack)
    else:
        stack.append(argument)
