"""How a script under `tachograph run` ends: there every SystemExit is seen, and so is a normal end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import os, signal, sys, time
from tachograph.client.recorder import Recorder
recorder = Recorder(run=sys.argv[1])
while not recorder._calls.sender._answered: time.sleep(0.01)
with recorder.step(): pass
"""


@pytest.mark.parametrize(
    ("run", "code", "ended"),
    [
        ("returns", "", (0, "finished")),
        ("exits-0", "sys.exit(0)", (0, "finished")),
        ("exits-1", "sys.exit(1)", (1, "exit_code")),
        ("raises", "raise SystemExit(2) from MemoryError()", (2, "oom")),  # from outside it would be exit_code
        ("catches", "try: sys.exit(1)\nexcept SystemExit: pass", (0, "finished")),
        ("quits", "os._exit(1)", (1, "exit_code")),
        ("killed", "os.kill(os.getpid(), signal.SIGKILL)", (-9, "died")),
    ],
)
def test_how_a_script_ends(scraped: Any, tmp_path: Path, run: str, code: str, ended: tuple[int, str]) -> None:
    """The exit status is the script's, and the rank ends for the reason that the script had."""
    status, reason = ended
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + code)
    done = scraped.run("-m", "tachograph", "run", "--quiet", script, run)
    assert done.status == status, done.errors
    found = [dict(labels) for name, labels in done.series if name == "tachograph_rank_ended_timestamp_seconds"]
    assert {"run": run, "rank": "0", "reason": reason} in found
    if reason in ("finished", "died", "oom"):
        assert len([labels for labels in found if labels["run"] == run]) == 1
