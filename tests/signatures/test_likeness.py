"""The words of errors whose row is known: what they say of another error, and how further ones are learned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.signatures import likeness
from tachograph.signatures.table import classify, parse, table
from tools import signature_words

TABLE = """\
version: 2026-01-01
errors: {exception: ['Error:'], said: ['\\bfailed\\b']}
signatures:
- {name: peers, category: network, role: cascade, words: {4: ['\\bpeer\\b']}, example: 'Error: a peer', cause: x}
- {name: files, category: storage, role: root, words: {4: ['\\bfile\\b']}, example: 'Error: a file', cause: x}
- {name: other, category: software, role: root, find: ['error:'], example: 'Error: 1', cause: x}
"""
COUNTS = {word: {"files": 9} for word in ("shelf", "drawer", "cabinet")} | {
    word: {"peers": 9} for word in ("wire", "plug", "socket")
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "ShardIndexError: no_such_key",
            {"shardindexerror", "shard", "index", "error", "no_such_key", "no", "such", "key"},
        ),
        ("rank 3 at 0x7f01ab step 4096", {"rank", "at", "step"}),
        ("RPCTimeout12s", {"rpctimeout0s", "rpc", "timeout0s"}),
        ("", set()),
    ],
)
def test_words(text: str, found: set[str]) -> None:
    """Names in parts and as a whole; numbers and addresses are none."""
    assert likeness.words(text) == found


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("Error: shelf, drawer and cabinet", "files"),
        ("Error: wire, plug and socket", "peers"),
        ("Error: shelf, drawer", "other"),  # two known words say nothing
        ("Error: shelf, drawer, wire, plug", "other"),  # as much for one as for the other
        ("Error: shelf, drawer, cabinet of a peer", "files"),  # weighed with the words of the table
        ("shelf, drawer, cabinet failed", None),  # nothing says that it is an error
    ],
)
def test_what_the_words_say(line: str, row: str | None) -> None:
    """They decide where the table has no word, and add to it where it has some."""
    found = parse(TABLE, COUNTS).classify(line)
    assert (found and found.name) == row


def test_a_sentence_counts_where_a_failure_is_known() -> None:
    """Healthy programs say that something failed, too."""
    made = parse(TABLE, COUNTS)
    found = made.classify("shelf, drawer, cabinet failed", failed=True)
    assert found is not None
    assert found.name == "files"
    assert made.classify("shelf, drawer, cabinet", failed=True) is None


def test_rows_that_the_table_does_not_have_do_not_count() -> None:
    """As after a row was renamed."""
    made = likeness.Likeness({"shelf": {"gone": 9}}, {"files": 1})
    assert made.weights("shelf shelf_a shelf_b") == {}


def test_the_counts_that_are_shipped() -> None:
    """They are of general rows that the table has, each word in two errors or more."""
    counts = likeness.read()
    assert len(counts) > 1_000
    general = {row.name for row in table().rows if row.evidence}
    assert {row for known in counts.values() for row in known} <= general
    assert min(sum(known.values()) for known in counts.values()) >= signature_words.LEAST


def test_further_errors_are_learned(tmp_path: Path) -> None:
    """Each once, without those that were learned before; words of a single error are not kept."""
    path = tmp_path / "lines.txt"
    path.write_text(
        "# a comment\nstorage root | FloodError: the zyxel shelf is wet\n"
        "storage root | a/b#12 | FloodError: a zyxel shelf\nstorage root | a/b#12 | FloodError: a zyxel shelf\n"
        "storage advice | none such\n"
    )
    errors = list(signature_words.labelled(path.read_text().splitlines()))
    assert errors[1] == ("storage root", "FloodError: a zyxel shelf")
    counts = signature_words.learned(errors, {"shelf": {"data_words": 2}})
    assert counts["zyxel"] == {"storage_words": 2}
    assert counts["shelf"] == {"data_words": 2, "storage_words": 2}
    assert "wet" not in counts
    assert "such" not in counts
    assert "zyxel storage_words=2\n" in signature_words.written(counts)


def test_a_sentence_that_no_row_has() -> None:
    """The last words of a rank that failed are weighed; the same in a log are none."""
    line = "Failed to reach the server at 10.0.0.7:6379 after 12 attempts"
    assert classify(line) is None
    row = classify(line, failed=True)
    assert row is not None
    assert row.category == "network"


def test_who_speaks_does_not_count() -> None:
    """NCCL says of a file what any program says of one, and its own level is no word."""
    assert likeness.words("NCCL WARN NET/IB : no_such file") == likeness.words("ERROR no_such file")
    made = parse(TABLE, COUNTS)
    row = made.classify("Error: NCCL WARN NET/OFI shelf, drawer, cabinet")
    assert row is not None
    assert row.name == "files"
