"""The boxes that the ranks of this node have sent: what each was doing when it stood still, failed or was asked.

They are kept in memory and served as they came, but for what looks like a secret: what is in one, the rank says, and a
client that is not ours redacts nothing. Of each rank there are two, the last one of a standstill or a failure and the
last one that was requested, which takes nothing from the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tachograph.node.ranks.frames import BoxPart, FrameError, Hello
from tachograph.text.redact import REDACTED, names_secret, redact, redact_lines
from tachograph.wire import BOX_REQUESTS, MAX_BOX_BYTES

USER_BYTES = 8 * 2**20
"""Of the boxes of one user: sixteen of the largest; requested ones give way first, then the oldest."""

NODE_BYTES = 4 * USER_BYTES
"""Of all boxes. Those of runs that are known no more give way first, then the oldest of the user with most; nobody
gives way to a user who has more."""

USER_BOXES = 128
"""Boxes of one user that may come at once: of 64 ranks, what each leaves and what it is asked for. What comes beyond
that and BOXES_HZ is not looked at: to look for secrets in a box costs milliseconds."""

BOXES_HZ = 1.0

KEPT_SECONDS = 24 * 3600.0
"""Whoever looks the next morning finds what is left of the night."""

LEAST_BYTES = 16 * 1024
"""A box counts as at least so much, so that small ones do not become too many."""

TEXTS = ("failure", "environment", "log")
"""Keys of a box whose texts a program wrote: all others are names of lines and counts."""

MOST_TEXTS = 256
"""Texts below one of these keys, more than our client sends; what is beyond them is dropped."""
DROPPED = "box"
"""Of catalog.DROP_REASONS."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])

Key = tuple[str, int, bool]
"""The run, the rank, and whether the box was requested."""


class Box(NamedTuple):
    """A box as a rank of a user sent it: JSON, made at Unix time `time` for a reason.

    It `came` by the monotonic clock.
    """

    run: str
    attempt: str
    rank: int
    time: float
    reason: str
    text: bytes
    uid: int
    came: float

    @property
    def is_requested(self) -> bool:
        """Whether somebody asked for it."""
        return self.reason.startswith(BOX_REQUESTS)


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
    is_requested: bool
    texts: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        return max(sum(map(len, self.texts)), LEAST_BYTES)

    def goes_on_with(self, part: BoxPart) -> bool:
        """Return whether this is the part that comes next."""
        return (self.id, self.parts, len(self.texts)) == (part.id, part.parts, part.part)


class Boxes:
    """The last boxes of each rank, also of ranks that are forgotten; `is_known` says whether a run is shown still."""

    def __init__(
        self,
        user_bytes: int = USER_BYTES,
        node_bytes: int = NODE_BYTES,
        clock: Callable[[], float] = lambda: 0.0,
        is_known: Callable[[str], bool] = lambda _: True,
        dropped: Counter[str] | None = None,
        *,
        exceeded: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        self._user_bytes = user_bytes
        self._node_bytes = node_bytes
        self._clock, self._is_known = clock, is_known
        self._exceeded = exceeded
        self._whole: dict[Key, _Whole] = {}
        """In the order in which they came."""
        self._unfinished: dict[tuple[str, int], _Unfinished] = {}
        self._held = Counter[int]()
        """Bytes by user."""
        self._begun: dict[int, tuple[float, float]] = {}
        """Of each user how many boxes beyond BOXES_HZ have come, and the time of the last."""
        self.dropped = Counter[str]() if dropped is None else dropped
        """With DROPPED, boxes that gave way to others, were refused for want of room, or became too old."""

    def add(self, uid: int, hello: Hello, part: BoxPart) -> None:
        """Take a part of a box of the rank that said this hello; raise FrameError for one that does not follow.

        The box is there with its last part, and replaces the one before it that was left, or requested, as it was.
        """
        key = hello.run, hello.rank
        begun = self._unfinished.pop(key, None)
        if begun is not None:
            self._give_back(begun)
        is_requested = part.reason.startswith(BOX_REQUESTS)
        if part.part == 0:
            if not self._may_begin(uid):
                return
            begun = _Unfinished(uid, part.id, part.parts, is_requested)
        elif begun is None or not begun.goes_on_with(part):
            raise FrameError("invalid", f"box: part {part.part} does not follow what came before: begin with part 0")
        begun.texts.append(part.text.encode())
        if sum(map(len, begun.texts)) > MAX_BOX_BYTES:
            raise FrameError("invalid", f"box: more than {MAX_BOX_BYTES:,} bytes")
        if len(begun.texts) < begun.parts:
            if self._make_room(uid, begun.size, is_requested):
                self._unfinished[key] = begun
                self._held[uid] += begun.size
            return
        text = b"".join(begun.texts)
        try:
            text = _redacted(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FrameError("invalid", f"box: not one JSON object: {error}") from None
        box = Box(hello.run, str(hello.attempt), hello.rank, part.time, part.reason, text, uid, self._clock())
        whole = _Whole(uid, box)
        place = (*key, is_requested)
        before = self._whole.pop(place, None)
        if before is not None:
            self._give_back(before)
        if self._make_room(uid, whole.size, is_requested):
            self._whole[place] = whole
            self._held[uid] += whole.size

    def _may_begin(self, uid: int) -> bool:
        """Count that a user sends one more; return False if those before it came too fast: it is dropped then."""
        now = self._clock()
        many, last = self._begun.get(uid, (0.0, now))
        many = max(0.0, many - (now - last) * BOXES_HZ)
        if many + 1 > USER_BOXES:
            self._exceeded(uid, "boxes")
            self.dropped[DROPPED] += 1
            return False
        self._begun[uid] = many + 1, now
        return True

    def of(self, run: str) -> list[Box]:
        """Return the boxes of a run by rank, of each rank what it left first, then what was requested.

        They are of the newest attempt that has any; what was left by an earlier one is there until that leaves some.
        """
        found = [whole.box for (name, *_), whole in self._whole.items() if name == run]
        newest = max((int(box.attempt) for box in found), default=0)
        left = max((int(box.attempt) for box in found if not box.is_requested), default=0)
        return sorted(
            (box for box in found if int(box.attempt) == (newest if box.is_requested else left)),
            key=lambda box: (box.rank, box.is_requested),
        )

    def runs(self) -> list[str]:
        """Return the runs that have a box here, in order."""
        return sorted({run for run, *_ in self._whole})

    def owner_of(self, run: str) -> int | None:
        """Return whose the boxes of a run are, None without any."""
        return next((whole.uid for (name, *_), whole in self._whole.items() if name == run), None)

    def drop_of_others(self, run: str, owner: int) -> None:
        """Drop what another user left of a run of this name, which is `owner`'s now."""
        for key in [key for key, each in self._whole.items() if key[0] == run and each.uid != owner]:
            self._give_back(self._whole.pop(key))
        for rank in [rank for rank, each in self._unfinished.items() if rank[0] == run and each.uid != owner]:
            self._give_back(self._unfinished.pop(rank))

    def drop_old(self) -> None:
        """Drop what came too long ago; call it about once a second."""
        limit = self._clock() - KEPT_SECONDS
        while self._whole and next(iter(self._whole.values())).box.came < limit:
            self._drop(next(iter(self._whole)))

    def _make_room(self, uid: int, size: int, is_requested: bool) -> bool:
        """Drop what gives way to a box of a user; return False where nothing does: it is dropped itself then."""
        while self._held[uid] + size > self._user_bytes:
            self._exceeded(uid, "boxes")
            if not self._drop_of(uid, requested_only=is_requested):
                self.dropped[DROPPED] += 1
                return False
        while self._held.total() + size > self._node_bytes:
            if (past := next((key for key in self._whole if not self._is_known(key[0])), None)) is not None:
                self._drop(past)
                continue
            gives_way = self._largest_above(self._held[uid] + size, first=not self._held[uid])
            last = uid if gives_way is None else gives_way
            self._exceeded(last, "boxes")
            if not self._drop_of(last, requested_only=is_requested and gives_way is None):
                self.dropped[DROPPED] += 1
                return False
        return True

    def _largest_above(self, size: int, *, first: bool) -> int | None:
        """Return the user who has most, the last of several, if that is more; or as much, for a user's first box."""
        largest = max(reversed(self._held), key=self._held.__getitem__, default=None)
        return largest if largest is not None and self._held[largest] + first > size else None

    def _drop_of(self, uid: int, *, requested_only: bool) -> bool:
        """Drop a user's oldest box that was requested, else the oldest, else one not finished; False for nothing."""
        own = [key for key, each in self._whole.items() if each.uid == uid]
        key = next((key for key in own if key[2]), None)
        if key is None and own and not requested_only:
            key = own[0]
        if key is not None:
            self._drop(key)
            return True
        for rank, each in self._unfinished.items():
            if each.uid == uid and (each.is_requested or not requested_only):
                self._give_back(self._unfinished.pop(rank))
                self.dropped[DROPPED] += 1
                return True
        return False

    def _drop(self, key: Key) -> None:
        self._give_back(self._whole.pop(key))
        self.dropped[DROPPED] += 1

    def _give_back(self, each: _Whole | _Unfinished) -> None:
        self._held[each.uid] -= each.size
        if not self._held[each.uid]:
            del self._held[each.uid]


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
