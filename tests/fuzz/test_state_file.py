"""The state file of an exporter: whatever stands in it, the next one starts, shows its ranks and takes in new ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tachograph.catalog.train import TRAIN_METRICS
from tachograph.node.ranks.saved_totals import encode
from tachograph.node.ranks.state_file import StateFile, boot_id
from tachograph.node.ranks.state_keeper import StateKeeper

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
    return encode(node.exporter.table.saved(boot_id()))


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
        StateFile(path).save(encode(node.exporter.table.saved(boot_id())))
        assert StateFile(path).load() is not None, "what was taken over cannot be kept"

    try:
        node.run_until_complete(live())
    finally:
        node.close()
    assert not unheard.found


whole = st.sampled_from([0, 1, -1, 2**31, 2**53, 2**62, -(2**62)]) | st.integers(-100, 100)
fractions = st.sampled_from([0.5, -5.0, 1e308, -1e308, 5e-324]) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.sampled_from(["", "訓" * 100, "\x1b[31m", "0", "witnes", *TRAIN_METRICS]) | st.text(max_size=5)
anything = st.none() | st.booleans() | whole | fractions | texts | st.just([]) | st.just({})
edits = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=2, max_size=8), whole, fractions, texts, st.none() | anything),
    min_size=1,
    max_size=3,
)
"""Which nodes of a document are replaced, each by the way down to it; and by what, if it is of that type."""


def edited(document: Any, way: list[int], *by: Any) -> None:
    """Replace a leaf by one of its type or by anything, or a key by another."""
    number, fraction, text, other = by
    for turn in way:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        if not keys:
            return
        key = keys[turn % len(keys)]
        if isinstance(document, dict) and "run" not in document and turn > 30:
            document[text] = document.pop(key)
            return
        inner = document[key]
        if isinstance(inner, (dict, list)):
            document = inner
            continue
        kinds = {int: number, float: fraction, str: text}
        document[key] = kinds.get(type(inner), inner) if other is None else other
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
    """Inputs that once failed."""
    check(path.read_bytes().replace(b"BOOT", boot_id().encode()), new_node(), unheard, tmp_path / "state")


def test_no_state_file_keeps_an_exporter_from_its_work(
    fuzz: Callable[..., None], memory: bytes, new_node: Callable[[], Any], unheard: Any, tmp_path: Path
) -> None:
    """Correct but for a few values, cut, mixed up or not a document at all: at most the file itself is lost."""

    def changed(one: bytes | list[Any]) -> bytes:
        if isinstance(one, bytes):
            return one
        document = json.loads(memory)
        for way, *by in one:
            edited(document, way, *by)
        return json.dumps(document).encode()

    cut = st.builds(
        lambda at, other: memory[: at % len(memory)] + other + memory[at % len(memory) :],
        st.integers(0, 5000), st.binary(max_size=4),
    )  # fmt: skip
    torn = st.integers(0, 5000).map(lambda at: memory[: at % len(memory)])
    made = edits | edits | edits | edits | cut | torn | st.binary(max_size=20)
    fuzz(lambda one: check(changed(one), new_node(), unheard, tmp_path / "state"), made, examples=80, share=0.2)


def test_what_is_kept_is_taken_over(memory: bytes, new_node: Callable[[], Any], unheard: Any, tmp_path: Path) -> None:
    """The document that the fuzzer changes is one that an exporter makes, and takes."""
    check(memory, new_node(), unheard, tmp_path / "state")
