"""A rank under srun, without PyTorch: a file `SIGKILL-NODE` has the one on that node get it, `finish` ends all."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import tachograph
from tachograph.files import atomic_file
from tachograph.processes.process_tree import started_at

NODE, RANK = os.environ["SLURMD_NODENAME"], int(os.environ["SLURM_PROCID"])


def main() -> None:
    """Make steps from the last one that was saved; leave this attempt's plan beside those of the others."""
    folder = Path(sys.argv[1])
    recorder = tachograph.Recorder()
    plan = recorder.resume()
    path = folder / "plans"
    earlier = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    twins = [one["pid"] for one in earlier if one["attempt"] != plan.attempt and started_at(one["pid"])]
    said = {
        "rank": RANK, "node": NODE, "pid": os.getpid(), "attempt": plan.attempt, "reason": plan.reason,
        "head": os.environ["TACHOGRAPH_HEAD_NODE"], "twins": twins,
        "queued": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
    }  # fmt: skip
    with path.open("a") as file:
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
        for number in (signal.SIGKILL, signal.SIGSTOP):
            if step % 20 == 0 and (folder / f"{number.name}-{NODE}").exists():
                (folder / f"{number.name}-{NODE}").unlink()
                time.sleep(1.2)  # the exporter hears of the step
                os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
