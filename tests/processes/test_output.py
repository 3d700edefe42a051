"""Commands whose standard streams are closed, or find no room: no traceback, no verdict that is not one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

TACHOGRAPH = (sys.executable, "-m", "tachograph")
PREFLIGHT = ("preflight", "--no-torch", "--only", "versions", "--json")
SIZE = ("size", "--nodes", "4")


def closed(descriptors: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell does that is told to close descriptors."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {descriptors}', "sh", *TACHOGRAPH, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("descriptors", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", [PREFLIGHT, SIZE, ("silence", "--list", "--alertmanager", "127.0.0.1:1")])
def test_closed_streams_change_no_status(arguments: Sequence[str], descriptors: str) -> None:
    """A prolog without an output passes the nodes that pass with one."""
    done = closed(descriptors, *arguments)
    assert done.returncode == closed("", *arguments).returncode, done.stderr
    assert "Traceback" not in done.stderr


def test_a_message_without_standard_error_is_not_in_the_output() -> None:
    """Which another program may read: `--json 2>&-`."""
    assert closed("2>&-", "silence", "--list", "--alertmanager", "127.0.0.1:1", "--json").stdout == ""
    assert json.loads(closed("2>&-", *PREFLIGHT).stdout)["state"] == "ok"


def test_no_file_takes_the_number_of_a_closed_stream() -> None:
    """What a library or a child prints would go into it."""
    code = (
        "import os, sys; from tachograph.processes.standard_streams import open_missing; open_missing();"
        "print(os.open('/dev/zero', 0) > 2, all(os.readlink(f'/proc/self/fd/{n}') == os.devnull for n in (0, 2)));"
        "sys.stdout.flush(); os.system('echo child; echo lost >&2')"
    )
    done = subprocess.run(
        ["sh", "-c", '"$@" <&- 2>&-', "sh", sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("True True\nchild\n", "")


@pytest.mark.parametrize("arguments", [PREFLIGHT, SIZE, ("--help",)])
def test_a_full_disk_is_one_line_and_no_verdict(arguments: Sequence[str]) -> None:
    """Status 1 would say that the node is faulty, or that the run is slower."""
    done = closed(">/dev/full", *arguments)
    assert done.returncode == os.EX_IOERR
    said = [line for line in done.stderr.splitlines() if not line.startswith("preflight: ")]
    assert said == ["tachograph: cannot write the output: No space left on device"]
