"""Lines that differ in numbers alone: of a wording that says nothing new any more, most are counted without being read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tachograph.logs.sightings import Key

SETTLED = 256
"""Lines of a wording in a row that are of a known kind and rank, after which it is settled."""
EVERY = 32
"""Of a settled wording one line in so many is read: it may be of another rank."""
_MOST = 4_000
"""Wordings that are told apart; then all are forgotten."""
_VARYING = b"0123456789abcdefABCDEF"
"""What numbers are made of, those with a base of 16 too."""


@dataclass
class _Wording:
    quiet: int = 0
    last: Key | None = None
    steps: int = 0
    passed: int = 0
    counted: int = 0


class Wordings:
    """The wordings of one stream."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Wording] = {}

    def counts(self, raw: bytes, steps: int) -> bool:
        """Return whether a line is only counted; `steps`: how many lines of steps were read before it."""
        one = self._known.get(raw.translate(None, _VARYING))
        if one is None or one.quiet < SETTLED or one.steps != steps:
            return False
        one.passed += 1
        if one.passed % EVERY == 0:
            return False
        one.counted += 1
        return True

    def read(self, raw: bytes, key: Key | None, steps: int, *, new: bool) -> None:
        """Note a line that was read, what it was counted as, and whether that is new; None: as nothing."""
        wording = raw.translate(None, _VARYING)
        one = self._known.get(wording)
        if one is None:
            if key is None or len(self._known) >= _MOST:
                return
            one = self._known[wording] = _Wording()
        one.quiet = 0 if new or key is None else one.quiet + 1
        one.last, one.steps = key, steps

    def forget(self) -> Iterator[tuple[Key, int]]:
        """Yield how many lines were counted, as what their wording was read as last; forget all wordings."""
        yield from ((one.last, one.counted) for one in self._known.values() if one.last and one.counted)
        self._known.clear()
