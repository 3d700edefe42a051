"""The boxes of our own ranks: what one says beside PyTorch's recorders that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from tachograph.blackbox.recorder import (
    COMMUNICATION,
    LARGEST_RANK,
    SEPARATOR,
    Progress,
    RankDump,
    member_ranks,
    whole,
)

MOST_SECONDS = 1e12
"""A time that is later is none."""


def is_one(value: object) -> bool:
    """Return whether a value is a box of ours, which may hold no recorder."""
    return isinstance(value, dict) and whole(value.get("box")) is not None


def add(dump: RankDump, box: Mapping[object, object]) -> None:
    """Add what a box of ours says beside the recorders: members of groups, the size of the world, the rank's place."""
    groups = box.get("groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        members = member_ranks(group.get("ranks", group.get("members")) if isinstance(group, dict) else group)
        if members:
            dump.members.setdefault(str(name)[:200], members)
    size = whole(box.get("world_size"))
    dump.world_size = size if size is not None and 0 < size <= LARGEST_RANK else None
    dump.where = _text(box.get("where")) or None
    dump.run, dump.reason, dump.phase = (_text(box.get(key)) for key in ("run", "reason", "phase"))
    failure = box.get("failure")
    if isinstance(failure, dict):
        dump.failed_in_collective = failure.get("category") == COMMUNICATION
        dump.raised = _text(failure.get("message"))
    made = _seconds(box.get("time"))
    dump.phase_seconds = _between(_seconds(box.get("phase_since")), made)
    dump.idle_seconds = _between(_seconds(box.get("progress_time")), made)
    lasted = [_seconds(step.get("seconds")) for step in _list(box.get("steps")) if isinstance(step, dict)]
    dump.usual_step = median([one for one in lasted if one is not None] or [0.0])
    _add_counts(dump, groups)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


def _list(value: object) -> Sequence[object]:
    return value[:1000] if isinstance(value, list) else ()


def _seconds(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < MOST_SECONDS else None


def _add_counts(dump: RankDump, groups: object) -> None:
    """Add how far each group has come by the box itself, where no recorder says it."""
    recorded = {key.partition(SEPARATOR)[0] for key in dump.progress}
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if isinstance(group, dict):
            backends = _text(group.get("backends")).split(",")
            dump.configured.update(one.rpartition(":")[2] for one in backends if one)
        if isinstance(group, dict) and str(name)[:200] not in recorded:
            enqueued, completed = whole(group.get("enqueued")), whole(group.get("completed"))
            if enqueued is not None and enqueued >= 0:
                dump.progress[str(name)[:200] + SEPARATOR] = Progress(enqueued, completed, counted=True)


def _text(value: object) -> str:
    return value[:500] if isinstance(value, str) else ""
