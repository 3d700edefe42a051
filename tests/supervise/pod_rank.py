"""A rank in a pod, without PyTorch: a file `SIGKILL-NODE` has the one on that node get it, `finish` ends all.

`hang-NODE` keeps it from coming to the next collective, in which the others wait for it.

Its number is the first that no living rank has: with as many as there should be taken, the run is there twice.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

import tachograph
from tachograph.files import atomic_file

NODE = os.environ["NODE_NAME"]
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


def numbered(folder: Path, ranks: int) -> tuple[int, object]:
    """Return a free number, and what holds it while this process lives."""
    for number in range(ranks):
        alone = (folder / f"alone-{number}").open("a")
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone.close()
            continue
        return number, alone
    (folder / "twice").touch()
    sys.exit(1)


def main() -> None:
    """Make steps from the last one that was saved; leave this attempt's plan beside those of the others."""
    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    number, _alone = numbered(folder, ranks)
    recorder = tachograph.Recorder(rank=number, local_rank=0, world_size=ranks)
    plan = recorder.resume()
    said = {
        "rank": number, "node": NODE, "pid": os.getpid(), "attempt": plan.attempt, "reason": plan.reason,
        "pod": os.environ["POD_NAME"], "step": plan.step, "run": os.environ["TACHOGRAPH_RUN"],
    }  # fmt: skip
    with (folder / "plans").open("a") as file:
        file.write(json.dumps(said) + "\n")
    saved = folder / f"saved-{number}"
    step = int(saved.read_text()) if saved.exists() else 0
    if step:
        recorder.resumed(step)
    while not (folder / "finish").exists():
        with recorder.step(step) as one:
            with recorder.phase("forward"):
                time.sleep(0.05)
                while (folder / f"hang-{NODE}").exists():
                    time.sleep(0.05)
            with recorder.collective("all_reduce"):
                while any(folder.glob("hang-*")):  # another rank does not come
                    time.sleep(0.05)
            one.log(loss=2.0)
        step += 1
        atomic_file.replace(saved, str(step).encode(), 0o600)
        for which in SIGNALS:
            if step % 20 == 0 and (folder / f"{which.name}-{NODE}").exists():
                (folder / f"{which.name}-{NODE}").unlink()
                time.sleep(1.2)  # the exporter hears of the step
                os.kill(os.getpid(), which)
    recorder.close()


if __name__ == "__main__":
    main()
