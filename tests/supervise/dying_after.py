"""`python -m tests.supervise.dying_after KIND ACTION …` is `tachograph …` that is killed after an entry of its journal.

That is the first one of this kind, and with this action if one is given, right after it is on disk.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from tachograph.__main__ import main

KIND, ACTION, *ARGUMENTS = sys.argv[1:]
JOURNAL = Path(ARGUMENTS[ARGUMENTS.index("--state") + 1]) / "journal.jsonl"


def _seen(_: FrameType, event: str, called: object) -> None:
    if event == "c_return" and called is os.fsync:
        entry = json.loads(JOURNAL.read_bytes().splitlines()[-1])
        if entry["kind"] == KIND and ACTION in ("", entry.get("action")):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.setprofile(_seen)
    sys.exit(main(ARGUMENTS))
