"""What a command leaves behind is ended, and gets its chance to end well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tachograph.processes.process_tree import Descendants, started_at

ENDS_WELL = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_stopped_process_can_end_well(tmp_path: Path) -> None:
    """SIGTERM waits for a process to be continued: without that it would be killed, with its last words unsaid."""
    descendants = Descendants()
    command = [sys.executable, "-c", ENDS_WELL, str(tmp_path / "ended")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        descendants.awaited = process.pid
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 90.0
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
        assert descendants.end(30.0) == 1
    assert (tmp_path / "ended").exists()


def test_a_process_is_named_by_its_start(tmp_path: Path) -> None:
    """One that has ended, and been waited for or not, has none."""
    assert started_at(os.getpid()) == started_at(os.getpid()) != ""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert started_at(process.pid) == ""
    process.wait()
    assert started_at(process.pid) == ""
