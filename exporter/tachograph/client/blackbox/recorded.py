"""The entries of PyTorch's Flight Recorders as plain values, with the lines of the user's code alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.client.torch.flight_recorder import spares_captures
from tachograph.client.torch.recorders import LEGACY_NCCL, entries, recorders_in_use
from tachograph.text.code_line import is_users
from tachograph.text.redact import redact

MOST_FRAMES = 3
"""Lines of the user's code that are kept of a call."""

_LEFT_OUT = frozenset({"frames", "thread_id", "thread_name"})


def recorded(*, lines: bool) -> dict[str, dict[str, Any]]:
    """Return what each recorder that is in use holds, by its name; with `lines` also from where each call was made.

    Lines take PyTorch up to a second, in which it holds Python's lock. One recorder that cannot be read costs no other.
    """
    found: dict[str, dict[str, Any]] = {}
    shown: dict[str, str] = {}
    for recorder in recorders_in_use():
        try:
            if recorder == LEGACY_NCCL and not spares_captures():
                continue
            dump = entries(recorder, lines=lines)
        except Exception as error:  # noqa: BLE001 - a private API: absent, renamed or changed
            found[recorder] = {"unreadable": type(error).__name__}
            continue
        if dump is not None:
            found[recorder] = {**dump, "entries": [_entry(each, shown) for each in dump.get("entries") or []]}
    return found


def _entry(given: Mapping[str, Any], shown: dict[str, str]) -> dict[str, Any]:
    """Return an entry without what is unknown, and without the lines of libraries."""
    entry = {key: value for key, value in given.items() if value is not None and key not in _LEFT_OUT}
    frames = [frame for frame in given.get("frames") or () if is_users(str(frame.get("filename", "")))]
    if frames:
        entry["frames"] = [
            {"name": frame.get("name"), "filename": _path(str(frame.get("filename")), shown), "line": frame.get("line")}
            for frame in frames[:MOST_FRAMES]
        ]
    return entry


def _path(path: str, shown: dict[str, str]) -> str:
    if path not in shown:
        shown[path] = redact(path)
    return shown[path]
