"""The memory in which a stuck process leaves its stacks, from the exporter: to whom it goes, and for how long."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.wire import STACKS_BYTES

STACKS = {"thread": 140_397_263_353_664, "sender": 4245}


@pytest.fixture(scope="module")
def exporter(exporter_at: Callable[..., Any]) -> Any:
    return exporter_at("--no-gpu")


def greet(speaker: Any, **hello: object) -> tuple[dict[str, object], list[int]]:
    """Return the answer to a hello, and the descriptors that came with it."""
    speaker.send(type="hello", run=speaker.run, rank=speaker.rank, **hello)
    data, descriptors, _, _ = socket.recv_fds(speaker.socket, 65536, 8)
    return json.loads(data), descriptors


def shared(exporter: Any) -> int:
    """How many such memories the exporter has."""
    folder = Path(f"/proc/{exporter.process.pid}/fd")
    return sum("tachograph-stacks" in str(each.readlink()) for each in folder.iterdir() if each.is_symlink())


def test_who_offers_its_stacks_gets_memory(exporter: Any) -> None:
    """Once a connection, with its answer; it is gone with it."""
    speaker = exporter.speaker()
    answer, (memory,) = greet(speaker, stacks=STACKS)
    assert answer == {"ok": True, "last_step": None}
    assert os.fstat(memory).st_size == STACKS_BYTES
    assert shared(exporter) == 1
    assert greet(speaker, stacks=STACKS, facts={"precision": "bf16"}) == (answer, [])
    speaker.close()
    exporter.eventually(lambda: shared(exporter) == 0)
    os.close(memory)


@pytest.mark.parametrize(
    "offered",
    [
        None,
        7,
        {},
        {"sender": 2},
        {"thread": "1", "sender": 2},
        {"thread": 2**64, "sender": 2},
        {"thread": -1},
    ],
)
def test_an_offer_that_is_none_is_left_out(exporter: Any, offered: object) -> None:
    """And counted; the hello stands, and what came with its answer is of no use."""
    before = exporter.scrape().counted("series_dropped", "wrong_type")
    speaker = exporter.speaker(run=f"offers {json.dumps(offered)}")
    answer, descriptors = greet(speaker, stacks=offered)
    assert answer["ok"] is True
    assert len(descriptors) == (0 if offered is None else 1)
    counted = exporter.scrape().counted("series_dropped", "wrong_type") - before
    assert counted == (offered is not None)
    for descriptor in descriptors:
        os.close(descriptor)
