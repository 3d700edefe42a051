"""A fault that a test asks for by the environment: from a moment on one rank is slow, stuck or killed in one place.

FAULT is what happens (`slow`, `stuck`, `killed`; else nothing), FAULT_PLACE where (`forward`, `data`), FAULT_RANK to
whom, FAULT_SECONDS how long after the rank first came there, and FAULT_ONSET the file that is written when it begins.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

SLOW_SECONDS = 0.1
STUCK_SECONDS = 900.0

KIND, PLACE = os.environ.get("FAULT", ""), os.environ.get("FAULT_PLACE", "")
AFFECTED = bool(KIND) and os.environ.get("FAULT_RANK") == os.environ.get("RANK")
_first: list[float] = []


def strike(place: str) -> None:
    """Be at a place of a training step, where the fault may be."""
    if not AFFECTED or place != PLACE:
        return
    now = time.time()
    if not _first:
        _first.append(now)
    if now - _first[0] < float(os.environ["FAULT_SECONDS"]):
        return
    onset = Path(os.environ["FAULT_ONSET"])
    if not onset.exists():
        onset.write_text(str(now), encoding="utf-8")
    if KIND == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(SLOW_SECONDS if KIND == "slow" else STUCK_SECONDS)
