"""A rank of bench/soak.py: `soak_rank.py RANK WORLD_SIZE ATTEMPT STEPS SOCKET FOLDER`, ten steps a second.

After STEPS steps, or once the file `stop` is in FOLDER, it stands still and writes its own count to `count-RANK` there.
When that has been compared and removed it ends as its attempt has it: killed, failed or finished.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from hostile_attacks import become
from tachograph import Recorder

UID, RUN = 1235, "soak"
HZ = 10.0
TOKENS_PER_RANK = 1000


def main() -> None:
    """Train, count, and end."""
    rank, ranks, attempt, steps = map(int, sys.argv[1:5])
    folder = Path(sys.argv[6])
    become(UID, None)  # everything is imported by now: this user may not be able to read it
    recorder = Recorder(
        run=RUN, rank=rank, world_size=ranks, attempt=attempt, tokens_per_step=TOKENS_PER_RANK * ranks,
        socket=sys.argv[5],
    )  # fmt: skip
    done = 0
    due = time.monotonic()
    while done < steps and not (folder / "stop").exists():
        with recorder.step() as step, recorder.phase("forward"):
            due = max(due + 1 / HZ, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            step.log(loss=2.0)
        done += 1
    count, fresh = folder / f"count-{rank}", folder / f"new-{rank}"
    fresh.write_text(json.dumps(done), encoding="utf-8")
    fresh.replace(count)
    while count.exists():
        time.sleep(0.2)
    if attempt % 3 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt % 3 == 1:
        raise RuntimeError("made up")
    recorder.close()


if __name__ == "__main__":
    main()
