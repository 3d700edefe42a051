"""The state file of an exporter: whatever stands in it, the next one starts, shows its ranks and takes in new ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tachograph.node.memory import encode
from tachograph.node.state_file import StateFile, boot_id
from tachograph.node.state_keeper import StateKeeper

CORPUS = Path(__file__).parent / "corpus"
HELLO = b'{"v":1,"type":"hello","run":"r","rank":%d,"pid":%d,"attempt":%d}\n'
STATE = (
    b'{"v":1,"type":"state","seq":%d,"time":1.0,"step":5,"metrics":{"productive_seconds_total":9,'
    b'"lost_seconds_total":{"data":1}},"histograms":{"step_seconds":{"schema":3,"sum":2.0,"count":2,"buckets":{"0":2}}}}\n'
)


async def speak(node: Any, rank: int, seq: int, attempt: int = 0) -> Any:
    speaker = node.speaker(1000, 1 + rank)
    assert (await speaker.say(HELLO % (rank, 1 + rank, attempt)))[0]["ok"]
    assert await speaker.say(STATE % seq) == []
    return speaker


async def kept(node: Any) -> bytes:
    """Return what an exporter keeps of a rank that runs, one that died and one that was forgotten."""
    await speak(node, 0, 1)
    (await speak(node, 1, 1)).close()
    await node.wait(node.retention + 1)
    (await speak(node, 2, 1)).close()
    return encode(node.exporter.table.memory(boot_id()))


def check(data: bytes, node: Any, unheard: Any, path: Path) -> None:
    """The exporter takes over what it can, says what it cannot, and shows a page with ranks old and new."""
    unheard.found.clear()
    path.write_bytes(data)

    async def live() -> None:
        StateKeeper(node.exporter.table, StateFile(path)).restore()
        node.page()
        witness = node.speaker(7, 70)
        assert (await witness.say(HELLO.replace(b'"r"', b'"witness"') % (0, 70, 0)))[0]["ok"]
        for rank in range(3):
            speaker = node.speaker(1000, 1 + rank)
            await speaker.say(HELLO % (rank, 1 + rank, 0))  # the file may say that the run is somebody else's
            await speaker.say(STATE % 2)
        await node.wait(10.0)
        assert ("tachograph_rank_state", "witness", "0", "running", "1") in node.page()
        StateFile(path).save(encode(node.exporter.table.memory(boot_id())))
        assert StateFile(path).load() is not None, "what was taken over cannot be kept"

    try:
        node.run_until_complete(live())
    finally:
        node.close()
    assert not unheard.found


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from([2**53, 2**63, -1, 1e308, -1e308, "訓" * 100, "\x1b[31m", "", "loss", "step_seconds", "data"])
)  # fmt: skip
values = leaves | st.lists(leaves, max_size=4) | st.dictionaries(st.text(max_size=5), leaves, max_size=3)


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[list[int], object]]:
    """Draw which nodes of a document are replaced, each by the way down to it, and by what."""
    ways = st.lists(st.integers(0, 30), min_size=1, max_size=7)
    return draw(st.lists(st.tuples(ways, values), min_size=1, max_size=3))


def edited(document: Any, way: list[int], value: object) -> None:
    """Replace the node at the end of `way`, or a leaf where that is met before; sometimes a key is replaced."""
    for depth, turn in enumerate(way):
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        if not keys:
            return
        key = keys[turn % len(keys)]
        inner = document[key]
        if depth + 1 < len(way) and isinstance(inner, (dict, list)):
            document = inner
        elif isinstance(document, dict) and isinstance(value, str) and turn > 15:
            document[value] = document.pop(key)
            return
        else:
            document[key] = value
            return


@pytest.fixture
def memory(new_node: Callable[[], Any]) -> bytes:
    node = new_node()
    try:
        return bytes(node.run_until_complete(kept(node)))
    finally:
        node.close()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("state-*.json")), ids=lambda path: path.stem)
def test_a_state_file_that_once_did_harm(path: Path, new_node: Callable[[], Any], unheard: Any, tmp_path: Path) -> None:
    """What was found once stays found."""
    check(path.read_bytes().replace(b"BOOT", boot_id().encode()), new_node(), unheard, tmp_path / "state")


def test_no_state_file_keeps_an_exporter_from_its_work(
    fuzz: Callable[..., None], memory: bytes, new_node: Callable[[], Any], unheard: Any, tmp_path: Path
) -> None:
    """Right but for a few values, cut, mixed up or no document at all: the file costs itself at most."""

    def changed(one: bytes | list[tuple[list[int], object]]) -> bytes:
        if isinstance(one, bytes):
            return one
        document = json.loads(memory)
        for way, value in one:
            edited(document, way, value)
        return json.dumps(document).encode()

    cut = st.builds(
        lambda at, other: memory[: at % len(memory)] + other + memory[at % len(memory) :],
        st.integers(0, 5000), st.binary(max_size=4),
    )  # fmt: skip
    torn = st.integers(0, 5000).map(lambda at: memory[: at % len(memory)])
    made = edits() | edits() | edits() | cut | torn | st.binary(max_size=20)
    fuzz(lambda one: check(changed(one), new_node(), unheard, tmp_path / "state"), made, examples=80, share=0.2)


def test_what_is_kept_is_taken_over(memory: bytes, new_node: Callable[[], Any], unheard: Any, tmp_path: Path) -> None:
    """The document that the fuzzer changes is one that an exporter makes, and takes."""
    check(memory, new_node(), unheard, tmp_path / "state")
