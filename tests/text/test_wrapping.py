"""Texts are as wide as the terminal that they go to, 100 columns where there is none, or what $COLUMNS says."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from tachograph.text.wrapping import fitted, wrapped

PROGRAM = "from tachograph.text.wrapping import columns; print(columns())"


def test_lines_are_broken_at_blanks() -> None:
    """What follows is indented; a line that fits, its blanks and an empty one stay as they are."""
    lines = ["", "  a  b", "  rank 3: never called all_reduce of group 7", "x" * 30, f"see {'y' * 30} now"]
    assert list(wrapped(lines, 26)) == [
        "", "  a  b", "  rank 3: never called", "    all_reduce of group 7", "x" * 30, "see", f"  {'y' * 30}", "  now",
    ]  # fmt: skip


def test_a_deep_indent_leaves_room() -> None:
    """However narrow the terminal is."""
    assert list(wrapped([" " * 30 + "one two three four five six"], 10)) == [
        " " * 30 + "one two three four", " " * 32 + "five six",
    ]  # fmt: skip


def test_others_names_move_no_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made printable before their length is looked at."""
    monkeypatch.setenv("COLUMNS", "24")
    assert fitted("a\x1b[2J", "a\nb") == "a?[2J\na?b"


@pytest.mark.parametrize(("size", "variable", "said"), [(80, "", 80), (132, "", 132), (80, "60", 60), (None, "", 100)])
def test_how_wide_it_is(size: int | None, variable: str, said: int) -> None:
    """By a terminal's own size, unless $COLUMNS is set."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {"COLUMNS": variable} if variable else {}
    ours, theirs = pty.openpty() if size else os.pipe()
    try:
        if size:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, size, 0, 0))
        subprocess.run([sys.executable, "-c", PROGRAM], stdout=theirs, env=environment, check=True, timeout=60)
        assert int(os.read(ours, 100)) == said
    finally:
        os.close(ours)
        os.close(theirs)
