"""The exporter's request to the analyst: which boxes follow, and where others are."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tachograph.blackbox.served import ServedRun, read_run


@dataclass(frozen=True)
class Request:
    """A run to be analyzed: the boxes of this node in the order in which they follow, and where others are.

    `is_private` is whether what is private of the boxes that follow may be used, `all_private` also of the others'.
    """

    own: ServedRun
    peers: str = ""
    is_private: bool = True
    all_private: bool = True

    def as_line(self) -> bytes:
        """Return the request as the analyst reads it."""
        said = {
            "own": json.loads(self.own.as_json()), "peers": self.peers, "is_private": self.is_private,
            "all_private": self.all_private,
        }  # fmt: skip
        return json.dumps(said).encode() + b"\n"


def read_request(line: bytes) -> Request:
    """Return a request."""
    said = json.loads(line)
    own = read_run(json.dumps(said["own"]).encode())
    return Request(own, said["peers"], said["is_private"], said["all_private"])
