"""The words that `make check` refuses: what is found, and where it is looked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import words


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("docs/a.md", "Good.\nAll but for one.\n", 2),
        ("runbooks/A.md", "A port makes errors.\n", 1),
        ("exporter/tachograph/a.py", "HELP = (\n    \"the rank's, else the node's\"\n)\n", 2),
        ("grafana/run.py", 'TITLE = "Ranks, the most conspicuous first"\n', 1),
        ("prometheus/src/a.yml", "# comment\nsummary: Run {{ $labels.run }} lost speed.\n", 2),
    ],
)
def test_what_a_user_reads_is_looked_at(path: str, text: str, line: int) -> None:
    """Each kind of file, with the line."""
    (found,) = words.found(path, text)
    assert found.startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/a.md", "Say `else` here:\n```\nif a, else b but for c\n```\nWhat else you see to the left is fine.\n"),
        ("exporter/tachograph/a.py", '"""Seen anew."""\n\n# mended\n\n\ndef f():\n    """Another, else none."""\n'),
        ("prometheus/src/a.yml", "  # A GPU that makes errors.\n"),
        ("tests/a.md", "anew\n"),
        ("CHANGELOG.md", "anew\n"),
        ("lab/a.py", 'TEXT = "anew"\n'),
        ("docs/a.md", "from then on, from one to the next\n"),
    ],
)
def test_what_nobody_reads_is_left_alone(path: str, text: str) -> None:
    """Code, comments, docstrings, tests, the changelog; and phrases that only look alike."""
    assert list(words.found(path, text)) == []


REFUSED = """\
all but for one; made anew; what is meant.; from 30 s on, it waits; a time from which on it counts; whoever reads;
A, else B; it hangs since noon; the run lost speed; a link damages packets; a port makes errors; memory is barely
enough; the most conspicuous first; nobody is told; mend it; too dear; failed thrice; not to be had; steps of late;
it is put right; it stops. Else restart; that is no help; for want of tests; see to the server; held for critical
holds for fatal; one that is none; its last word; down, under run x; it is no part of that; the memory thereof;
clocks are held down; pages taken out of use; the least visible first; it stands still since; take
the change back; tokens per second and rank; at 3 times its usual; stopped, as by a user"""


@pytest.mark.parametrize("phrase", words.PHRASES)
def test_every_phrase_refuses_something(phrase: str) -> None:
    """And says what to write."""
    assert re.search(phrase, REFUSED.replace("\n", " "), re.IGNORECASE)
    assert words.PHRASES[phrase]


def test_this_checkout_is_looked_at() -> None:
    """`make check`, with which `make test` begins, looks at all of its texts."""
    assert Path(words.ROOT, "README.md").is_file()
