"""Lines as Loki returns them: streams with labels, each with its values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard


def entries(streams: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield the nanosecond of each line, and the line as an object with `msg`, `time`, and its node and rank.

    Raises KeyError, TypeError or ValueError for what has another form.
    """
    for stream in streams:
        labels = stream.get("stream") or {}
        said: dict[str, str | int] = {
            "node": _label(labels, ("node", "node_name", "host", "hostname", "pod", "instance"))
        }
        rank = _label(labels, ("rank",))
        if rank.isdecimal():
            said["rank"] = int(rank)
        for at, text, *_ in stream["values"]:
            yield int(at), json.dumps({"msg": str(text), "time": int(at) / 1e9} | said, ensure_ascii=False) + "\n"


def is_stream(record: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether an object is one of Loki's streams."""
    return (
        isinstance(record, dict) and isinstance(record.get("stream"), dict) and isinstance(record.get("values"), list)
    )


def _label(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((str(labels[name]) for name in names if labels.get(name)), "")
