"""A well-behaved user during an attack: how late the exporter applies its ranks' state, and which ranks it refuses.

Rank 0 sends a state and a hello four times per second. Frames of a connection are processed in order, and the answer to
a hello has the last step applied, so the time to that answer is the delay of the state: measured on the socket, without
a scrape. Rank 1 dies before the attack; rank 2 connects for the first time during it.

Prints "ready" once rank 1 is dead, starts at a line on standard input, prints its results as one line of JSON, and
keeps rank 0 sending until standard input ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time

from hostile_attacks import WITNESS_RUN, WITNESS_UID, become

PERIOD = 0.25
"""Eight frames per second: within the ten that a rank may send."""

GRACE_SECONDS = 10.0
"""How long to wait for the last answer after the attack."""


class RefusedError(OSError):
    """The exporter refused a frame."""


class WitnessRank:
    """One rank that reconnects as often as necessary."""

    def __init__(self, path: str, rank: int) -> None:
        self._path = path
        self._rank = rank
        self._seq = 0
        self._socket: socket.socket | None = None
        self._received = b""
        self.lost = 0
        self.refusals: list[str] = []

    def apply(self, deadline: float) -> float:
        """Send the next step until the exporter has it; return the seconds that took, at most until `deadline`."""
        began = time.monotonic()
        self._seq += 1
        while time.monotonic() < deadline:
            try:
                if self._say(deadline) >= self._seq:
                    break
            except RefusedError as refusal:
                self.refusals.append(str(refusal))
                self._hang_up()
            except OSError as error:
                self.lost += self._socket is not None
                if self._socket is None and not isinstance(error, BlockingIOError):
                    self.refusals.append(str(error))
                self._hang_up()
            time.sleep(0.1)
        return time.monotonic() - began

    def _say(self, deadline: float) -> int:
        """Send state and hello, and return the step in the answer."""
        now = time.time()
        common = {"v": 1, "run": WITNESS_RUN, "rank": self._rank, "world_size": 3, "pid": os.getpid()}
        hello = json.dumps({**common, "type": "hello"}).encode() + b"\n"
        state = {"seq": self._seq, "time": now, "step": self._seq, "phase": "forward", "phase_since": now}
        metrics = {"tokens_total": self._seq, "steps_total": self._seq, "loss": 2.5}
        line = json.dumps({"v": 1, "type": "state", **state, "metrics": metrics}).encode() + b"\n"
        if self._socket is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.connect(self._path)
                sock.sendall(hello)
            except OSError:
                sock.close()
                raise
            self._socket, self._received = sock, b""
            self._answer(deadline)
        self._socket.sendall(line + hello)
        return self._answer(deadline)

    def _answer(self, deadline: float) -> int:
        assert self._socket is not None
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                raise TimeoutError("no answer")
            received = self._socket.recv(65536)
            if not received:
                raise ConnectionError("closed")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        if not answer["ok"]:
            raise RefusedError(str(answer.get("error")))
        return int(answer.get("last_step") or 0)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def die(rank: WitnessRank, deadline: float) -> None:
    """Let a rank step once in a process of its own, and end that process: no line says so, the kernel does."""
    process = os.fork()
    if not process:
        rank.apply(deadline)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)


def measure(rank: WitnessRank, newcomer: WitnessRank, seconds: float) -> dict[str, object]:
    """Send for `seconds` and return the results; the newcomer connects after a third of the time."""
    begin = time.monotonic()
    deadline = begin + seconds + GRACE_SECONDS
    joined: list[float] = []

    def join() -> None:
        time.sleep(seconds / 3)
        joined.append(newcomer.apply(deadline))

    thread = threading.Thread(target=join)
    thread.start()
    late = []
    count = 0
    while time.monotonic() < begin + seconds:
        late.append(rank.apply(deadline))
        count += 1
        time.sleep(max(0.0, begin + count * PERIOD - time.monotonic()))
        count = max(count, int((time.monotonic() - begin) / PERIOD))
    thread.join()
    return {
        "late": late,
        "lost": rank.lost + newcomer.lost,
        "refusals": rank.refusals + newcomer.refusals,
        "joined": joined[0],
    }


def main() -> None:
    """Run the witness's ranks and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    os.setpriority(os.PRIO_PROCESS, 0, -10)  # what is measured is the exporter's delay, not the wait for a core
    become(WITNESS_UID, None)
    rank, dead, newcomer = (WitnessRank(options.socket, number) for number in range(3))
    soon = time.monotonic() + GRACE_SECONDS
    rank.apply(soon)
    die(dead, soon)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(measure(rank, newcomer, options.seconds)), flush=True)
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        for each in (rank, newcomer):
            with contextlib.suppress(OSError):
                each.apply(time.monotonic() + 1.0)


if __name__ == "__main__":
    main()
