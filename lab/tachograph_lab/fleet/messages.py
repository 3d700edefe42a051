"""Messages from ranks to their exporter: real wire frames (docs/protocol.md), one line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tachograph.wire import VERSION, encode_number
from tachograph_lab.scenario.definition import USUAL_OWNER

Link = tuple[str, int, int, int]
"""Run, rank, attempt, and the run's number among those of the cluster: one process of a rank."""

_encode = msgspec.json.encode


class RankMessage(NamedTuple):
    """A frame that a rank sends to the exporter of its node; None closes its connection.

    `exit_code` is that of its process, where it ended so without a bye; `uid` is its user.
    """

    node: str
    connection: Link
    frame: bytes | None
    exit_code: int | None = None
    uid: int = USUAL_OWNER


def encode_frame(kind: str, fields: Mapping[str, object]) -> bytes:
    """Return a frame without its line feed; numbers must be finite or encoded."""
    return _encode({"v": VERSION, "type": kind, **fields})


def encoded(value: object) -> object:
    """Return a metric's value encoded for JSON."""
    if isinstance(value, dict):
        return {label: encode_number(each) for label, each in value.items()}
    return encode_number(value) if isinstance(value, float) else value
