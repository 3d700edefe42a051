"""A rank of bench/nodes.py: `nodes_rank.py RANK WORLD_SIZE ROOT FOLDER`. It trains nothing, and meets all others.

Rank 0 runs on the host ROOT. A rank whose file `stuck-RANK` is in FOLDER stands still in its input until that is gone;
all end after the same step once the file `end` is there.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

import tachograph

RUN = "llama-7b"
PORT = 29500
TOKENS = 8192
AGAIN_SECONDS = 0.1
"""A rank repeats its word so often until it is answered: any packet may be lost."""

LINGER_SECONDS = 2.0
"""How long rank 0 answers the others after its own last step."""

DATA_SECONDS, FORWARD_SECONDS, BACKWARD_SECONDS = 0.01, 0.06, 0.10


class Root(threading.Thread):
    """Rank 0's end: answers whoever waits for a step that all ranks have come to, and says whether it is the last."""

    def __init__(self, ranks: int, end: Path) -> None:
        super().__init__(daemon=True)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", PORT))
        self._come = [-1] * ranks
        self._complete = -1
        self._end, self._last = end, sys.maxsize

    def run(self) -> None:
        """Answer until the process ends."""
        waiting: dict[int, tuple[str, int]] = {}
        while True:
            word, sender = self._socket.recvfrom(64)
            rank, step = map(int, word.split())
            self._come[rank] = max(self._come[rank], step)
            waiting[rank] = sender
            if min(self._come) > self._complete:
                self._complete = min(self._come)
                if self._end.exists():
                    self._last = min(self._last, self._complete)
            for each in [each for each in waiting if self._come[each] <= self._complete]:
                self._socket.sendto(b"%d %d" % (self._come[each], self._last), waiting.pop(each))


class Meeting:
    """A rank's end: returns from a step once every rank has come to it."""

    def __init__(self, rank: int, root: str) -> None:
        self._rank = rank
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(AGAIN_SECONDS)
        self._root = root

    def goes_on(self, step: int) -> bool:
        """Wait for all others, through any outage; return whether another step follows."""
        while True:
            try:
                self._socket.sendto(b"%d %d" % (self._rank, step), (self._root, PORT))
                complete, last = map(int, self._socket.recv(64).split())
            except OSError:  # a time-out, or a network that is down
                time.sleep(AGAIN_SECONDS / 10)
                continue
            if complete >= step:
                return step < last


def main() -> None:
    """Train until the process is ended, or all are."""
    rank, ranks, root, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    if rank == 0:
        Root(ranks, folder / "end").start()
    meeting = Meeting(rank, root)
    stuck = folder / f"stuck-{rank}"
    recorder = tachograph.Recorder(run=RUN, rank=rank, world_size=ranks, tokens_per_step=TOKENS)
    number, goes_on = 0, True
    while goes_on:
        with recorder.step() as step:
            with recorder.phase("data"):
                time.sleep(DATA_SECONDS)
                while stuck.exists():
                    time.sleep(AGAIN_SECONDS)
            with recorder.phase("forward"):
                time.sleep(FORWARD_SECONDS)
            with recorder.phase("backward"):
                time.sleep(BACKWARD_SECONDS)
            with recorder.collective("all_reduce", 1 << 20):
                goes_on = meeting.goes_on(number)
            step.log(loss=2.0 + 1.0 / (1 + number))
        number += 1
    recorder.close()
    if rank == 0:
        time.sleep(LINGER_SECONDS)


if __name__ == "__main__":
    main()
