"""The frames of a rank as typed values, and readable errors for those that are rejected."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from tachograph.catalog.rank import EXIT_CODE
from tachograph.wire import (
    MAX_BOX_PARTS,
    MAX_BOX_REASON_BYTES,
    MAX_EVENTS,
    MAX_NAME_BYTES,
    MAX_RUN_BYTES,
    VERSION,
    cut,
    is_name,
    is_role,
)

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
LAST_INSTANT = 2**36
"""In Unix seconds the year 4147: milliseconds given by mistake are refused."""
Instant = Annotated[float, msgspec.Meta(ge=0, le=LAST_INSTANT)]
Age = Annotated[float, msgspec.Meta(ge=0, le=2**36)]
ExitCode = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
MAX_REASON = 256
"""Of a category, and of a message, as they are shown."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class Peer(NamedTuple):
    """The process that sends a rank's frames, as the kernel identifies it (SO_PEERCRED)."""

    uid: int
    pid: int


class FrameError(Exception):
    """A rejected frame: `reason` is one of `catalog.REJECT_REASONS`, the message is for the sender."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The first frame of a connection: who is speaking. From `facts` to `stacks` fields are ignored if invalid.

    Without a `world_size` the run has this rank and those before it.
    """

    v: int
    run: str
    rank: Count
    local_rank: Count = 0
    world_size: Count = 0
    attempt: Count = 0
    pid: Count = 0
    uuid: str | None = None
    facts: dict[str, Any] = {}
    visible_devices: Any = None
    granted_devices: Any = None
    job: Any = None
    metrics: Any = None
    coordinates: Any = None
    stacks: Any = None
    role: str = ""

    def __post_init__(self) -> None:
        if not is_name(self.run):
            raise ValueError(
                f"run must be printable text of 1 to {MAX_NAME_BYTES} bytes in UTF-8, got {len(self.run)} characters"
            )
        if self.role and not is_role(self.role, self.run):
            raise ValueError(
                f"role must be printable text of 1 to {MAX_NAME_BYTES} bytes in UTF-8 without a slash, and at most "
                f"{MAX_RUN_BYTES} with the run, got {len(self.role)} characters"
            )
        if self.world_size == 0:
            msgspec.structs.force_setattr(self, "world_size", self.rank + 1)
        elif self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} is not in a world of {self.world_size}: ranks count from 0")
        if self.uuid is not None and not (self.uuid == "" or is_name(self.uuid)):
            raise ValueError(f"uuid must be printable text of at most {MAX_NAME_BYTES} bytes in UTF-8")

    def shown_as(self, run: str) -> Hello:
        """Return this hello with the name by which its run is shown, which may be longer than a rank's own."""
        shown = copy(self)
        msgspec.structs.force_setattr(shown, "run", run)
        return shown


class Welcome(NamedTuple):
    """The answer to an accepted hello."""

    last_step: int | None
    ended: float | None
    """Unix time of the last heartbeat of an earlier process of this rank, None if none is known."""
    ended_seconds: float | None
    """How long ago that was."""
    superseded: object | None
    """The connection that represented this rank until now."""
    run: str
    """The name by which the run is shown."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened once; `id` rises within a process, so that a repeated event is recognized."""

    id: Count
    kind: Name
    time: Instant
    step: Count | None = None


class State(msgspec.Struct, tag="state", frozen=True):
    """The current state of a rank; totals are cumulative, so the next frame makes up for a lost one.

    `phase_seconds` and `progress_seconds` are ages when the frame was made, by a clock that nobody sets.
    `raised`: the exception that the rank is held up by, as `category`, `message` and `time`; absent once it goes on.
    `where`: the line at which a rank that makes no step is. `still`: for how many seconds a rank in a save has done
    nothing. `checkpoint_path`: where its last checkpoint is. Of these and `notices`, what is wrong is left out.
    """

    v: int
    seq: Count
    time: Instant
    step: Count | None = None
    phase: str | None = None
    phase_since: Instant | None = None
    phase_seconds: Age | None = None
    progress_time: Instant | None = None
    progress_seconds: Age | None = None
    metrics: dict[str, Any] = {}
    histograms: dict[str, Any] = {}
    events: Annotated[list[Event], msgspec.Meta(max_length=MAX_EVENTS)] = []
    dropped: Count = 0
    notices: Any = None
    raised: Any = None
    where: Any = None
    still: Any = None
    checkpoint_path: Any = None


class BoxPart(msgspec.Struct, tag="box", frozen=True):
    """A part of a rank's box, which is longer than a frame; the parts of one have the same `id` and come in order."""

    v: int
    id: Count
    part: Count
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_BOX_PARTS)]
    time: Instant
    reason: str
    text: str

    def __post_init__(self) -> None:
        if self.part >= self.parts:
            raise ValueError(f"part {self.part} is not one of {self.parts}: parts count from 0")
        msgspec.structs.force_setattr(self, "reason", cut(self.reason, MAX_BOX_REASON_BYTES))


class Bye(msgspec.Struct, tag="bye", frozen=True):
    """The last frame of a process that shuts down in an orderly way.

    `at_exit`: the program did not say so itself, its process ends: whether that is well is for the exit code to say.
    """

    v: int
    outcome: Literal["finished", "failed"]
    category: str = ""
    message: str = ""
    exit_code: ExitCode | None = None
    at_exit: bool = False

    @property
    def reason(self) -> str:
        """Why a rank failed as a person reads it: its category, or the exit code where that is all, and its text."""
        category, message = self.category[:MAX_REASON], self.message[:MAX_REASON]
        if category == EXIT_CODE and self.exit_code is not None:
            category = f"exit code {self.exit_code}"
            if message.startswith(category):  # as our client writes it
                return message
        return ": ".join(text for text in (category, message) if text)


class Unrecorded(msgspec.Struct, tag="unrecorded", frozen=True):
    """The only frame of a process that would be recorded, and cannot be."""

    v: int
    why: str


MOST_QUESTIONS = 4
"""Of a supervisor at once: it has one about what nodes say, and one about what alerts say."""


class Question(msgspec.Struct, frozen=True):
    """A decision of a supervisor that has waited for a person for so long."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{6}", max_length=6)]
    action: str
    seconds: Age


class Skipped(msgspec.Struct, frozen=True):
    """The steps, from the first to the last, whose batches a supervisor has had left out most often, and how often."""

    first: Count
    last: Count
    times: Count


class Supervision(msgspec.Struct, tag="supervisor", frozen=True):
    """A report of a run's supervisor on itself: all totals, so that the next frame makes up for a lost one.

    `actions` counts by action and outcome, `webhooks` by outcome; those that are none are left out. `ended`: it says so
    for the last time.
    """

    v: int
    run: str
    mode: Literal["shadow", "ask", "act", "failed"]
    job: Any = None
    blind_seconds: Age = 0.0
    restarts_left: Count | None = None
    actions: dict[str, Any] = {}
    webhooks: dict[str, Any] = {}
    recovery_seconds: Age | None = None
    lost_steps: Count = 0
    saved_gpu_seconds: Age = 0.0
    questions: Annotated[list[Question], msgspec.Meta(max_length=MOST_QUESTIONS)] = []
    skipped: Skipped | None = None
    ended: bool = False

    def __post_init__(self) -> None:
        self.hello()

    def hello(self) -> Hello:
        """Return the hello by which a rank would claim the run; raise ValueError for a name that cannot be a run's."""
        return Hello(v=self.v, run=self.run, rank=0, job=self.job)


Frame = Hello | State | BoxPart | Bye | Unrecorded | Supervision


TYPES = ("hello", "state", "box", "bye", "unrecorded", "supervisor")


class _Head(msgspec.Struct):
    v: Any = None
    type: Any = None


_decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)
_head = msgspec.json.Decoder(_Head)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode(line: bytes) -> Frame:
    """Return the frame in one line of JSON; raise FrameError with a reason and a message that the sender can act on."""
    try:
        frame = _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise _explain(line, error) from None
    except _UNREADABLE as error:
        raise FrameError("malformed", f"not one JSON object on one line: {error}") from None
    if frame.v != VERSION:
        raise _wrong_version(frame.v)
    return frame


def _explain(line: bytes, error: msgspec.ValidationError) -> FrameError:
    """Distinguish a frame of another version or type from a known one with an invalid field."""
    try:
        head = _head.decode(line)
    except _UNREADABLE as unreadable:
        return FrameError("malformed", f"not one JSON object on one line: {unreadable}")
    if head.v != VERSION:
        return _wrong_version(head.v)
    if head.type not in TYPES:
        return FrameError("type", f"unknown type {_short(head.type)}: expected {', '.join(TYPES[:-1])} or {TYPES[-1]}")
    return FrameError("invalid", f"{head.type}: {error}")


def _wrong_version(given: object) -> FrameError:
    return FrameError("version", f"version v={_short(given)}: this exporter speaks v={VERSION}")


def _short(value: object) -> str:
    if not isinstance(value, (str, int, float, type(None))):
        return f"({type(value).__name__})"  # nested as deep as the decoder allows: repr could hit the recursion limit
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
