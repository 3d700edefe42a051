"""The boxes that the ranks of this node have sent: what each was doing when it stood still, failed or was asked.

They are kept in memory, the last one of each rank, and served as they came, but for what looks like a secret: what is
in one, the rank says, and a client that is not ours redacts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tachograph.node.ranks.frames import BoxPart, FrameError, Hello
from tachograph.redact import REDACTED, names_secret, redact, redact_lines
from tachograph.wire import MAX_BOX_BYTES

USER_BYTES = 8 * 2**20
"""Of the boxes of one user: sixteen of the largest; the oldest give way."""

NODE_BYTES = 4 * USER_BYTES
"""Of all boxes: the oldest of the user with most give way."""

LEAST_BYTES = 16 * 1024
"""A box counts as at least so much, so that small ones do not become too many."""

TEXTS = ("failure", "environment", "log")
"""Keys of a box whose texts a program wrote: all others are names of lines and counts."""

MOST_TEXTS = 256
"""Texts below one of these keys, more than our client sends; what is beyond them is dropped."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Box(NamedTuple):
    """A box as a rank sent it: JSON, made at Unix time `time` for a reason."""

    run: str
    attempt: str
    rank: int
    time: float
    reason: str
    text: bytes


@dataclass
class _Whole:
    """A box, and whose it is."""

    uid: int
    box: Box

    @property
    def size(self) -> int:
        return max(len(self.box.text), LEAST_BYTES)


@dataclass
class _Unfinished:
    """The first parts of a box."""

    uid: int
    id: int
    parts: int
    texts: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        return max(sum(map(len, self.texts)), LEAST_BYTES)

    def goes_on_with(self, part: BoxPart) -> bool:
        """Return whether this is the part that comes next."""
        return (self.id, self.parts, len(self.texts)) == (part.id, part.parts, part.part)


class Boxes:
    """The last box of each rank, also of ranks that are forgotten; the oldest give way to new ones."""

    def __init__(self, user_bytes: int = USER_BYTES, node_bytes: int = NODE_BYTES) -> None:
        self._user_bytes = user_bytes
        self._node_bytes = node_bytes
        self._whole: dict[tuple[str, int], _Whole] = {}
        self._unfinished: dict[tuple[str, int], _Unfinished] = {}

    def add(self, uid: int, hello: Hello, part: BoxPart) -> None:
        """Take a part of a box of the rank that said this hello; raise FrameError for one that does not follow.

        The box is there with its last part, and replaces the one before it.
        """
        key = hello.run, hello.rank
        begun = self._unfinished.pop(key, None)
        if part.part == 0:
            begun = _Unfinished(uid, part.id, part.parts)
        elif begun is None or not begun.goes_on_with(part):
            raise FrameError("invalid", f"box: part {part.part} does not follow what came before: begin with part 0")
        begun.texts.append(part.text.encode())
        if sum(map(len, begun.texts)) > MAX_BOX_BYTES:
            raise FrameError("invalid", f"box: more than {MAX_BOX_BYTES:,} bytes")
        if len(begun.texts) < begun.parts:
            self._make_room(uid, begun.size)
            self._unfinished[key] = begun
            return
        text = b"".join(begun.texts)
        try:
            text = _redacted(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FrameError("invalid", f"box: not one JSON object: {error}") from None
        self._whole.pop(key, None)
        whole = _Whole(uid, Box(hello.run, str(hello.attempt), hello.rank, part.time, part.reason, text))
        self._make_room(uid, whole.size)
        self._whole[key] = whole

    def of(self, run: str) -> list[Box]:
        """Return the last box of each rank of a run in its newest attempt that left any, by rank."""
        found = [whole.box for (name, _), whole in self._whole.items() if name == run]
        newest = max((int(box.attempt) for box in found), default=0)
        return sorted((box for box in found if int(box.attempt) == newest), key=lambda box: box.rank)

    def runs(self) -> list[str]:
        """Return the runs that have a box here, in order."""
        return sorted({run for run, _ in self._whole})

    def drop_of_others(self, run: str, owner: int) -> None:
        """Drop what another user left of a run of this name, which is `owner`'s now."""
        for held in (self._whole, self._unfinished):
            for key in [key for key, each in held.items() if key[0] == run and each.uid != owner]:
                del held[key]

    def _make_room(self, uid: int, size: int) -> None:
        while self._bytes_of(uid) + size > self._user_bytes:
            self._drop_oldest(uid)
        while sum(each.size for each in self._every()) + size > self._node_bytes:
            self._drop_oldest(max({each.uid for each in self._every()}, key=self._bytes_of))

    def _every(self) -> Iterator[_Whole | _Unfinished]:
        yield from self._whole.values()
        yield from self._unfinished.values()

    def _bytes_of(self, uid: int) -> int:
        return sum(each.size for each in self._every() if each.uid == uid)

    def _drop_oldest(self, uid: int) -> None:
        """Drop the oldest box of a user; where there is none, the oldest that is not finished."""
        for held in (self._whole, self._unfinished):
            for key in [key for key, each in held.items() if each.uid == uid][:1]:
                del held[key]
                return


def _redacted(text: bytes) -> bytes:
    """Return a box without secrets; raise msgspec.DecodeError or RecursionError if it is not one JSON object."""
    fields = _object.decode(text)
    texts = {key: msgspec.json.decode(fields[key]) for key in TEXTS if key in fields}
    shown = {key: _without_secrets(value, [MOST_TEXTS]) for key, value in texts.items()}
    if shown == texts:
        return text
    return msgspec.json.encode(fields | {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in shown.items()})


def _without_secrets(value: Any, left: list[int]) -> Any:  # noqa: ANN401 - of any type that JSON has
    """Return a value with every text in it redacted; of all texts, as many as `left` says."""
    if isinstance(value, str):
        left[0] -= 1
        return redact(value) if left[0] >= 0 else ""
    if isinstance(value, list):
        kept = value[: max(0, left[0])]
        if all(isinstance(each, str) for each in kept):
            left[0] -= len(kept)
            return redact_lines(kept)
        return [_without_secrets(each, left) for each in kept]
    if isinstance(value, dict):
        return {
            name: REDACTED if names_secret(name) and isinstance(each, str) else _without_secrets(each, left)
            for name, each in list(value.items())[: max(0, left[0])]
        }
    return value
