"""Parts that the sender thread calls one by one; a failure affects only the part that failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tachograph.client.core.counters import Counter
from tachograph.client.core.notice import notice, raised_by_signal

FAILURES = 5
"""Calls that may fail in a row before a part is removed."""

Part = TypeVar("Part")


class Guarded(Generic[Part]):
    """Sources, observers or sinks; their exceptions are counted in `dropped`."""

    __slots__ = ("_dropped", "_failures", "_parts")

    def __init__(self, dropped: Counter, *parts: Part) -> None:
        self._dropped = dropped
        self._parts: list[Part] = list(parts)
        self._failures: dict[int, int] = {}

    def add(self, part: Part) -> None:
        """Call this part, too, from now on."""
        self._parts.append(part)

    def clear(self) -> None:
        """Call none of them again."""
        self._parts.clear()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def each(self, use: Callable[[Part], object]) -> None:
        """Call `use` with every part; an exception is counted, logged once, and ends that part's turn."""
        for part in tuple(self._parts):
            try:
                use(part)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) or raised_by_signal(error):
                    raise
                self._fail(part, error)
            else:
                if self._failures:
                    self._failures.pop(id(part), None)

    def _fail(self, part: Part, error: BaseException) -> None:
        self._dropped.count += 1
        failures = self._failures[id(part)] = self._failures.get(id(part), 0) + 1
        name = type(part).__name__
        notice(f"part {name}", f"{name} failed", error)
        if failures >= FAILURES:
            self._parts[:] = [one for one in self._parts if one is not part]
            del self._failures[id(part)]
