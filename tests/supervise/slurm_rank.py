"""A rank of a run under srun, without PyTorch: a file `die-NODE` ends the one on that node, `finish` ends all."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import tachograph
from tachograph import atomic_file

NODE, RANK = os.environ["SLURMD_NODENAME"], int(os.environ["SLURM_PROCID"])


def main() -> None:
    """Make steps from the last one that was saved; leave this attempt's plan beside those of the others."""
    folder = Path(sys.argv[1])
    recorder = tachograph.Recorder()
    plan = recorder.resume()
    said = {
        "rank": RANK, "node": NODE, "pid": os.getpid(), "attempt": plan.attempt, "reason": plan.reason,
        "head": os.environ["TACHOGRAPH_HEAD_NODE"], "queued": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
    }  # fmt: skip
    with (folder / "plans").open("a") as file:
        file.write(json.dumps(said) + "\n")
    saved = folder / f"saved-{RANK}"
    step = int(saved.read_text()) if saved.exists() else 0
    if step:
        recorder.resumed(step)
    while not (folder / "finish").exists():
        with recorder.step(step) as one:
            time.sleep(0.05)
            one.log(loss=2.0)
        step += 1
        atomic_file.replace(saved, str(step).encode(), 0o600)
        if step % 20 == 0 and (folder / f"die-{NODE}").exists():
            (folder / f"die-{NODE}").unlink()
            time.sleep(1.2)  # the exporter hears of the step
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
