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
from contextlib import contextmanager, suppress
from typing import Generic, NoReturn, TypeVar

LARGEST_MEMO = 1 << 20
"""Highest memo index: the unpickler allocates 16 bytes for each index below it, and 2,000 entries need some 10,000."""

MOST_HELD = 256
"""Values in a tuple and in those within it; the recorder's tuples hold two. Python hashes every one of them, and uses
its C stack for each level, the end of which no exception reports."""

MOST_BITS = 4096
"""Bits of a number: Python reads all of them whenever it is a key."""

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


T = TypeVar("T")


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
    salvaged = _Salvaged()
    with suppress(*FAULTS), _no_warnings():
        for opcode, argument in _opcodes(data):
            if opcode not in ALLOWED or opcode == "STOP":
                break
            salvaged.step(opcode, argument)
    return salvaged.value()


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that finds no class, if ever the check before it lets a name through."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise NotPlainError(f"wants {module}.{name}")

    def persistent_load(self, _: object) -> NoReturn:
        raise NotPlainError("wants an outside object")


def _sized(prefix: bytes, length_bytes: int, most: int) -> bytes:
    branches = (re.escape(length.to_bytes(length_bytes, "little")) + b".{%d}" % length for length in range(most))
    return re.escape(prefix) + b"(?:" + b"|".join(branches) + b")"


_START = re.compile(rb"\x80.(?:\x95.{8})?", re.DOTALL)
_PUT = rb"(?:q.|r..[\x00-\x0f]\x00|\x94)?"  # an index below LARGEST_MEMO
_ONE = (
    b"(?:"
    + b"|".join(
        (
            rb"[N\x88\x89]",
            rb"[Kh].",
            rb"M..",
            rb"[Jj]....",
            rb"G........",
            _sized(b"\x8a", 1, 10),
            _sized(b"X", 4, 256),
            _sized(b"\x8c", 1, 256),
        )
    )
    + b")"
    + _PUT
)
_NUMBER = re.compile(_PUT, re.DOTALL)
_PARTS = {b"one": _ONE, b"put": _PUT, b"tuple": rb"[\x85-\x87]", b"number": rb"[qr\x94]"}
_COMMON = re.compile(
    b"(?:(?:"
    + b"|".join(
        (
            rb"%(one)s",
            rb"[]})]%(put)s(?:\([eu]%(put)s)?",
            rb"\((?![eu])",
            rb"[ldaesu]%(put)s",
            rb"0(?!%(number)s|[eu])",
            rb"\.",
        )
    )
    % _PARTS
    + rb")(?!%(tuple)s)|%(one)s(?:\x85|%(one)s(?:\x86|%(one)s\x87))(?!%(number)s|%(tuple)s)" % _PARTS
    # Not all at once: each repetition keeps its place to go back to, and does so where it finds a tuple.
    + rb"){1,1000}(?!(?:%(one)s){0,2}%(tuple)s)" % _PARTS,
    re.DOTALL,
)
"""A thousand of the opcodes that nearly all of a dump consists of, so that its check costs less than its reading.

Tuples are flat here. They are built only from the texts and numbers right before them, and get no memo index, because
no opcode that leaves a tuple on top of the stack may be followed by one that assigns an index.
"""


def _is_common(data: bytes) -> bool:
    """Return whether a file consists of opcodes that need not be followed one by one."""
    start = _START.match(data)
    at = start.end() if start else 0
    while at < len(data):
        found = _COMMON.match(data, at)
        if found:
            at = found.end()
        elif data[at : at + 1] == b"X":  # a long text
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            at += len(number[0]) if (number := _NUMBER.match(data, at)) else 0
        else:
            return False
    return at == len(data)


def _check(data: bytes) -> None:
    if _is_common(data):
        return
    held = _Held()
    try:
        with _no_warnings():
            for opcode, argument in _opcodes(data):
                if opcode not in ALLOWED:
                    raise NotPlainError(f"holds more than plain values ({opcode})")
                if opcode in ("PUT", "LONG_BINPUT") and not 0 <= int(str(argument)) < LARGEST_MEMO:
                    raise NotPlainError("a memo index without reason")
                if isinstance(argument, int) and argument.bit_length() > MOST_BITS:
                    raise NotPlainError("a number without reason")
                held.step(opcode, argument)
    except NotPlainError:
        raise
    except FAULTS as error:
        raise ValueError("damaged or cut short") from error


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Keep Python from warning that a damaged text of protocol 0 looks like an invalid escape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _opcodes(data: bytes) -> Iterator[tuple[str, object]]:
    """Yield name and argument of each opcode up to the first fault."""
    for opcode, argument, _ in pickletools.genops(data):
        yield opcode.name, argument


class _Stack(Generic[T]):
    """The stack of an unpickler, of which the marks are kept apart, so that none is ever looked for."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.marks: list[int] = []
        self.memo: dict[int, T] = {}

    def since_mark(self) -> list[T]:
        """Take what stands after the last mark."""
        return self.last(len(self.values) - self.marks.pop())

    def last(self, count: int) -> list[T]:
        """Take so many values; raise IndexError where there are fewer."""
        at = len(self.values) - count
        if at < (self.marks[-1] if self.marks else 0):
            raise IndexError(count)
        taken = self.values[at:]
        del self.values[at:]
        return taken

    def keeps(self, opcode: str, argument: object) -> bool:
        """Carry out what only moves values and marks; return whether that was all."""
        if opcode == "MARK":
            self.marks.append(len(self.values))
        elif opcode in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(str(argument))] = self.values[-1]
        elif opcode == "MEMOIZE":
            self.memo[len(self.memo)] = self.values[-1]
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            self.values.append(self.memo[int(str(argument))])
        elif opcode == "POP" and self.marks and self.marks[-1] == len(self.values):
            self.marks.pop()
        elif opcode == "POP":
            self.values.pop()
        elif opcode == "POP_MARK":
            self.since_mark()
        else:
            return opcode in ("PROTO", "FRAME", "STOP")
        return True


class _Held(_Stack[int]):
    """How many values a hash of each value in a pickle reads: of a tuple all that it holds, however often."""

    def step(self, opcode: str, argument: object) -> None:
        """Follow an opcode; raise NotPlainError where a tuple holds too much."""
        if self.keeps(opcode, argument):
            return
        if opcode in _TAKEN:
            self.last(_TAKEN[opcode])
        elif opcode in ("APPENDS", "SETITEMS"):
            self.since_mark()
        elif opcode in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            held = 1 + sum(self.since_mark() if opcode == "TUPLE" else self.last(int(opcode[-1])))
            if held > MOST_HELD:
                raise NotPlainError(f"a tuple is nested too deep or too long (more than {MOST_HELD} values)")
            self.values.append(held)
        else:
            if opcode in ("DICT", "LIST"):
                self.since_mark()
            self.values.append(1)


class _Salvaged(_Stack[object]):
    """The values of a pickle as far as it goes; a tuple is a list here, which nothing can use as a key."""

    def value(self) -> object:
        """Return the outermost value, into which what is still open has been put; None where there is none."""
        while self.marks:
            items = self.since_mark()
            if self.values:
                _put(self.values[-1], items)
        return self.values[0] if self.values else None

    def step(self, opcode: str, argument: object) -> None:
        """Carry out an opcode; raise one of FAULTS where the pickle is damaged."""
        if self.keeps(opcode, argument):
            return
        if opcode in _CONSTANT:
            self.values.append(_CONSTANT[opcode]())
        elif opcode in ("APPENDS", "SETITEMS"):
            items = self.since_mark()
            _put(self.values[-1], items)
        elif opcode in _TAKEN:
            items = self.last(_TAKEN[opcode])
            _put(self.values[-1], items)
        elif opcode in ("TUPLE1", "TUPLE2", "TUPLE3"):
            self.values.append(self.last(int(opcode[-1])))
        elif opcode in ("LIST", "TUPLE"):
            self.values.append(self.since_mark())
        elif opcode == "DICT":
            made: dict[object, object] = {}
            _put(made, self.since_mark())
            self.values.append(made)
        else:
            self.values.append(argument)


def _put(holder: object, items: list[object]) -> None:
    """Put values into the container for which they were made."""
    if isinstance(holder, list):
        holder.extend(items)
    elif isinstance(holder, dict):
        for key, value in zip(items[::2], items[1::2], strict=False):
            if isinstance(key, (str, int)):
                holder[key] = value


_TAKEN: Mapping[str, int] = {"APPEND": 1, "SETITEM": 2}
_CONSTANT: Mapping[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
