"""The private parts of a run: only its owner and the site's readers may read them; everybody else reads the rest.

| | private | shown to everybody |
|---|---|---|
| a rank on a page | the texts of `message` and `notices` | states, figures, `where`: the line of a hang |
| a box | all keys but `PUBLIC_OF_BOX`; the folders of code lines | who, when, why; steps, groups, recorders |
| a failure in a box | its message and lines | its category |
| NCCL RAS | its answer | whether there is one |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from tachograph.blackbox.recorder import UserLines

MayRead = Callable[[int], bool]
"""Says whether a reader may have what is private of the runs of a uid."""

WITHHELD = "(shown to the run's owner and to the site's readers: docs/web.md)"

PUBLIC_OF_BOX = frozenset((
    "box", "run", "rank", "local_rank", "world_size", "attempt", "pid", "job", "coordinates", "time", "reason", "where",
    "failure", "step", "phase", "phase_since", "phase_seconds", "progress_time", "steps", "groups", "groups_unreadable",
    "recorders", "memory", "cut", "entries_cut", "members",
))  # fmt: skip
"""The keys of a box that everybody may read, `failure` and `recorders` in part."""

BOXES_KEPT = 4
"""Boxes kept as others may read them, so that asking again costs nothing."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@lru_cache(BOXES_KEPT)
def public_box(text: bytes) -> bytes:
    """Return a box without what is private in it, nothing of one that is no JSON object or nests too deeply."""
    try:
        keys: dict[str, object] = {key: raw for key, raw in _decode(text).items() if key in PUBLIC_OF_BOX}
    except (msgspec.DecodeError, RecursionError):
        return b"{}"
    for key, public in (("failure", _category), ("recorders", _without_folders)):
        if isinstance(raw := keys.get(key), msgspec.Raw):
            try:
                keys[key] = public(msgspec.json.decode(raw))
            except (msgspec.DecodeError, RecursionError):  # nested too deeply
                keys[key] = None
    return msgspec.json.encode(keys)


def _category(failure: object) -> object:
    return {"category": failure.get("category")} if isinstance(failure, dict) else None


def _without_folders(value: object) -> object:
    """Return recorders whose lines of the user's code have the names of files alone."""
    if isinstance(value, dict):
        return {
            key: _public_path(each) if key == "filename" and isinstance(each, str) else _without_folders(each)
            for key, each in value.items()
        }
    return [_without_folders(each) for each in value] if isinstance(value, list) else value


def _public_path(path: str) -> str:
    """Return the name of a file; of a library's, which an analysis must tell from the user's own, the path in it."""
    begins = max((path.rfind(part) for part in UserLines.LIBRARIES), default=-1)
    return path[begins:] if begins >= 0 else path.rpartition("/")[2]
