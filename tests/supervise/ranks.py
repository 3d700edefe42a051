"""A launcher of a few ranks that record themselves and train nothing; without PyTorch it starts in a tenth of a second.

As torchrun does, it ends the others when one rank fails. `--fail WHAT@STEP` has rank 1 fail in the attempts given by
`--attempts`, `die` by SIGKILL, `raise`, `exit-CODE`, `stop` by SIGSTOP, `loop` for ever, or
`nan`. The batch of a `spike` spoils
what all ranks train from then on, in each attempt; the first goes on until it is ended. Each leaves its plan and its
processes, and its ranks the steps that they made.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import tachograph


def rank(number: int, given: argparse.Namespace, together: Barrier) -> None:
    """Train one rank: read the last checkpoint, go on from there, and save every few steps."""
    recorder = tachograph.Recorder(rank=number, local_rank=number, world_size=given.ranks)
    plan = recorder.resume()
    alone = (given.folder / f"alone-{number}").open("a")
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where the run is there twice
    with (given.folder / "plans").open("a") as file:
        file.write(json.dumps([number, os.getpid(), *plan, os.environ.get("TACHOGRAPH_PLAN", "")]) + "\n")
    checkpoints = given.folder / "checkpoints"
    wanted = None if given.ignore else plan.step
    begin = max((int(path.name) for path in checkpoints.glob("*") if wanted in (None, int(path.name))), default=0)
    if begin:
        recorder.resumed(begin)
    kind, _, at = given.fail.partition("@")
    fails = number == 1 and kind and (not given.attempts or plan.attempt in map(int, given.attempts.split(",")))
    is_spoilt = kind == "spike" and begin > int(at)
    made = (given.folder / f"steps-{number}").open("a", buffering=1)
    last = sys.maxsize if kind == "spike" and not plan.attempt else given.steps
    for step in range(begin, max(last, begin + 100) if given.ignore else last):
        if plan.skips(step) and not given.ignore:
            continue
        is_spoilt |= kind == "spike" and step == int(at)
        if fails and step >= int(at) and kind == "die":
            if given.damage:
                (checkpoints / str(step // 10 * 10) / "state").write_bytes(b"other")
            wait(0.3)  # the exporter hears of this step before
            os.kill(os.getpid(), signal.SIGKILL)
        if fails and step >= int(at) and kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fails and step >= int(at) and kind.startswith("exit-"):
            sys.exit(int(kind.removeprefix("exit-")))
        if fails and step >= int(at) and kind == "raise":
            raise ValueError("a batch of no size")
        with recorder.step(step) as one:
            with recorder.phase("forward"):
                while fails and step >= int(at) and kind == "loop":
                    wait(given.step_seconds)
                wait(given.step_seconds)
            with recorder.collective("all_reduce"):
                together.wait()
            is_lost = fails and kind == "nan" and step >= int(at)
            one.log(loss=float("nan") if is_lost else 9.0 if is_spoilt else 2.0 + step % 3 / 100)
        print(step, file=made)
        if number == 0 and step % 10 == 9:
            (path := checkpoints / str(step + 1)).mkdir(parents=True, exist_ok=True)
            (path / "state").write_bytes(b"state")
            (path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'state').hexdigest()}  state\n")
            recorder.checkpoint_saved(step + 1, path=path)
    recorder.close()


def wait(seconds: float) -> None:
    """Compute for so long, as it were."""
    time.sleep(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--fail", default="")
    parser.add_argument("--attempts", default="0")
    parser.add_argument("--ignore", action="store_true", help="the plan")
    parser.add_argument("--damage", action="store_true", help="the newest checkpoint, before rank 1 dies")
    given = parser.parse_args()
    ranks, together = {}, multiprocessing.Barrier(given.ranks)
    for number in range(given.ranks):
        if (pid := os.fork()) == 0:
            rank(number, given, together)
            sys.exit(0)
        ranks[pid] = number

    def end(number: int, _: object) -> None:
        for pid in ranks:
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, end)
    failed = False
    while ranks:
        pid, status = os.wait()
        ranks.pop(pid, None)
        if status and not failed:
            failed = True
            end(signal.SIGTERM, None)
    sys.exit(failed)


if __name__ == "__main__":
    main()
