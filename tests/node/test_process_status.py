"""A process is what the kernel says of it, whatever it calls itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tachograph.node.process_status import process_status
from tachograph.node.ranks.gpu_owners import uid_of

NAMED = "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0); print(flush=True); input()"
"""PR_SET_NAME, which takes 15 bytes."""


@pytest.mark.parametrize(
    "name", ["a\rUid: a x a a", "a\rUid:\t5 6 7 8", "a\x0bUid: 5 6 7 8", "a\nUid: 5 6 7 8", "a\\nUid: 5 6 7"]
)
def test_a_process_says_nothing_of_itself_by_its_name(name: str) -> None:
    """A process can have any name, and none makes it another user's or stops whoever reads of it."""
    with subprocess.Popen([sys.executable, "-c", NAMED, name], stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert process_status(process.pid)["Tgid"] == str(process.pid)
        assert uid_of(process.pid) == os.geteuid()
        process.stdin.write(b"\n")
    assert process_status(process.pid) == {}
