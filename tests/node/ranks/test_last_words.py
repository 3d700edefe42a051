"""The last words of a rank: their category by the table of signatures, and what of them anybody may read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog.rank import FAILURE_CATEGORIES, FAILURE_REASONS
from tachograph.node.ranks.frames import Bye
from tachograph.node.ranks.last_words import CATEGORY_OF_REASON, LastWords, last_words

TEXTS = Path(__file__).parents[2] / "signatures" / "failure_texts.jsonl"
EXCEPTIONS = [
    (row["text"], row["category"])
    for row in map(json.loads, TEXTS.read_text(encoding="utf-8").splitlines())
    if re.match(r"[\w.]*(?:Error|Exception)\b: ", row["text"]) and row["role"] != "advice"
]


def test_there_are_last_words_to_try() -> None:
    """Of the known failure texts, those that an exception ends a process with."""
    assert len(EXCEPTIONS) >= 30


@pytest.mark.parametrize(("text", "category"), EXCEPTIONS)
def test_an_exception_is_counted_and_shown_by_its_category(table: Any, hand: Any, text: str, category: str) -> None:
    """By the same table as `tachograph logs`, whatever little the client knew of it."""
    table.greet(link := object())
    table.tell(link, seq=1, time=100.0)
    table.bye(link, Bye(v=1, outcome="failed", category="exception", message=text.splitlines()[0][:512]))
    hand.turn(1.0, table.tick)
    assert table.shown()["train_failures_total", "r", "0", category] == 1
    shown = [
        sample.labels for sample in table.samples() if sample.metric.name == "tachograph_run_last_words_age_seconds"
    ]
    assert [(*labels[:2], labels[5]) for labels in shown] == [("r", "0", category)]


@pytest.mark.parametrize(
    ("reason", "message", "category", "line"),
    [
        ("exception", "torch.OutOfMemoryError: CUDA out of memory.", "out_of_memory",
         "torch.OutOfMemoryError: CUDA out of memory"),
        ("exit_code", "exit code 1 after OSError: [Errno 28] No space left on device: '/c/a'", "storage",
         "OSError: [Errno 28] No space left on device: '/c/a'"),
        ("exit_code", "exit code 7: cannot go on", "software", "exit code 7"),
        ("exit_code", "exit code 7", "software", "exit code 7"),
        ("exit_code", "exit code 7 after KeyError: 'mine'", "software", "KeyError"),
        ("terminated", "exit code 143", "preemption", ""),
        ("exception", "KeyError: 'password of mine'", "software", "KeyError"),
        ("exception", "evil.com: click here", "software", "evil[.]com"),
        ("exit_code", "exit code 1 after OSError: [Errno 28] No space left on device: see a.b.evil.io/fix or evil.com.",
         "storage", "OSError: [Errno 28] No space left on device: see a[.]b[.]evil[.]io/fix or evil[.]com"),
        ("exception", "my.own.TrainingError", "software", "my.own.TrainingError"),
        ("exception", "it did not go well: <b>", "software", ""),
        ("data", "ValueError: bad shard", "data", "ValueError"),
        ("data", "OSError: [Errno 5] Input/output error", "storage", "OSError: [Errno 5] Input/output error"),
        ("nonfinite", "", "numerical", ""),
        ("oom", "MemoryError", "out_of_memory", "MemoryError"),
        ("terminated", "RuntimeError: NCCL error: remote process exited", "preemption", ""),
        ("interrupted", "KeyboardInterrupt", "preemption", ""),
        ("exception", "OSError: [Errno 28] No space left on device: 's3://me:hunter2@b/<x>'", "storage",
         "OSError: [Errno 28] No space left on device: 's3://[redacted]?b/?x?'"),
    ],
)  # fmt: skip
def test_what_is_shown_of_a_message(reason: str, message: str, category: str, line: str) -> None:
    """A line that the table knows, of others the exception's type; the reason decides where the words say nothing."""
    assert last_words(reason, message) == LastWords(category, line)


@pytest.mark.parametrize(
    "message", ["CUDA out of memory " + "x" * 5000, "CUDA out of memory\x00\n\x1b[31m", "\n\n", "é" * 600]
)
def test_any_message_leaves_a_short_plain_line(message: str) -> None:
    """Of whatever length and letters."""
    words = last_words("exception", message)
    assert words.category in FAILURE_CATEGORIES
    assert len(words.line) <= 160
    assert re.fullmatch(r"[A-Za-z0-9 .,:;/()\[\]#=+!%'_?-]*", words.line)


def test_every_reason_has_a_category() -> None:
    """One that a client may give and the table does not know would end the connection."""
    assert tuple(CATEGORY_OF_REASON) == FAILURE_REASONS
    assert set(CATEGORY_OF_REASON.values()) <= set(FAILURE_CATEGORIES)


def test_the_exporter_needs_no_library_of_logs() -> None:
    """The table is read without what searches gigabytes of logs."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('tachograph.logs', 'drain3', 'ahocorasick_rs')))\n"
        "from tachograph.node.ranks.last_words import last_words\n"
        "print(last_words('exception', 'RuntimeError: CUDA error: uncorrectable ECC error encountered').category)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "hardware\n"
