"""A run whose ranks send plain counters, by the standard library alone.

    python plain_client.py RUN RANKS [FAULT RANK AT]

Each rank works for 0.15 s a step and then waits for the others at a barrier. At step AT the named rank hangs while it
loads data, works three times as long from then on, is killed, or its loss is NaN: `hang`, `slow`, `die`, `nan`.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.synchronize import Barrier


class Rank:
    def __init__(self, run: str, rank: int, ranks: int) -> None:
        self.steps, self.ended = 0, time.time()
        self.seconds = {"data": 0.0, "forward": 0.0, "collective": 0.0}
        self.phase, self.since = "data", time.time()
        self.loss: float | str = 2.5
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ["TACHOGRAPH_SOCKET"])
        self.say(type="hello", run=run, rank=rank, local_rank=rank, world_size=ranks, pid=os.getpid())
        threading.Thread(target=self.send, daemon=True).start()

    def say(self, **frame: object) -> None:
        self.socket.sendall(json.dumps({"v": 1, **frame}).encode() + b"\n")

    def send(self) -> None:
        for sequence in range(1, 100_000):
            metrics = {"steps_total": self.steps, "phase_seconds_total": self.seconds, "loss": self.loss}
            self.say(
                type="state", seq=sequence, time=time.time(), step=self.steps, phase=self.phase, phase_since=self.since,
                metrics=metrics, **({"progress_time": self.ended} if self.steps else {}),
            )  # fmt: skip
            time.sleep(1)

    def enter(self, phase: str) -> None:
        now = time.time()
        self.seconds[self.phase] += now - self.since
        self.phase, self.since = phase, now


def train(me: Rank, meet: Barrier, fault: str, at: int) -> None:
    while True:
        odd = fault if me.steps >= at else ""
        if odd and me.steps == at:
            print(time.time(), flush=True)
        if odd == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if odd == "nan":
            me.loss = "NaN"
        time.sleep(10_000 if odd == "hang" else 0.05)
        me.enter("forward")
        time.sleep(0.3 if odd == "slow" else 0.1)
        me.enter("collective")
        meet.wait()
        me.enter("data")
        me.steps, me.ended = me.steps + 1, time.time()


def begin(rank: int, meet: Barrier) -> None:
    run, ranks, fault, culprit, at = (*sys.argv[1:], "", "-1", "0")[:5]
    train(Rank(run, rank, int(ranks)), meet, fault if rank == int(culprit) else "", int(at))


if __name__ == "__main__":
    everybody = range(int(sys.argv[2]))
    meet = multiprocessing.Barrier(len(everybody))
    processes = [multiprocessing.Process(target=begin, args=(rank, meet), daemon=True) for rank in everybody]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
