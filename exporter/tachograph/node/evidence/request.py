"""The exporter's request to the analyst: which boxes follow, and where others are."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tachograph.blackbox.served import ServedRun, read_run


@dataclass(frozen=True)
class Request:
    """A run to be analyzed: the boxes of this node in the order in which they follow, and where others are."""

    own: ServedRun
    peers: str = ""

    def as_line(self) -> bytes:
        """Return the request as the analyst reads it."""
        return json.dumps({"own": json.loads(self.own.as_json()), "peers": self.peers}).encode() + b"\n"


def read_request(line: bytes) -> Request:
    """Return a request."""
    said = json.loads(line)
    return Request(read_run(json.dumps(said["own"]).encode()), said["peers"])
