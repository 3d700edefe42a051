"""The load of bench/soak.py: ranks that die and return, attackers one after the other, slow readers, a bad GPU."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import re
import socket
import sys
import threading
import time
from pathlib import Path

from hostile_attacks import ATTACKS
from soak_rank import RUN, UID
from tachograph_lab.fake_nvml.library import FOREVER, FakeNvml
from tachograph_lab.processes import Child, Children

HERE = Path(__file__).parent
RANKS, MORTALS = 64, 16
"""The ranks, and how many of them die and return; the others live to the end."""
LIFE_STEPS = (200, 600)
"""The least and most steps of a mortal's life."""
AWAY_SECONDS = (2.0, 15.0)
FOR_EVER = 10**9
APPLIED_SECONDS = 60.0
"""After so long without a step the exporter must have a rank's last state."""
PAGE_NAME = f"uid:{UID}/{RUN}"
STEPS = re.compile(rf'^tachograph_train_steps_total{{run="{PAGE_NAME}",rank="(\d+)"}} (\S+)$', re.M)

ATTACK_SECONDS, QUIET_SECONDS = 12.0, 12.0
LATE_SECONDS = 2.0
"""What attackers may take to start."""

SETTLE_SECONDS = 3.0
"""After an attack, before the node counts as quiet."""

HUNG_GPU, HANG_EVERY, HANG_SECONDS = 2, 120.0, 20.0
HUNG = re.compile(rf'^tachograph_gpu_unavailable_info{{gpu="{HUNG_GPU}",[^}}]*reason="hung"}} 1$', re.M)
SLOW_READERS, SLOW_BYTES = 4, 2048
"""How many read a page this many bytes a second."""


class Ranks:
    """The ranks and their counts: what they say they did must be what the exporter shows."""

    def __init__(self, children: Children, socket_path: Path, folder: Path, seed: int) -> None:
        self._children, self._socket, self._folder = children, socket_path, folder
        self._random = random.Random(seed)
        self._attempt = dict.fromkeys(range(RANKS), 0)
        self._living: dict[int, Child] = {}
        self._return_at: dict[int, float] = {}
        self._waiting: dict[int, float] = {}
        """Ranks that stand still, and until when their last state may be on its way."""
        self.compared = self.deaths = 0
        self.wrong: list[str] = []

    def start(self, rank: int) -> None:
        """Start a rank, for the first time or again."""
        steps = self._random.randint(*LIFE_STEPS) if rank < MORTALS else FOR_EVER
        words = [sys.executable, HERE / "soak_rank.py", rank, RANKS, self._attempt[rank], steps]
        self._living[rank] = self._children.start(f"rank-{rank}", [*words, self._socket, self._folder])  # type: ignore[list-item]

    def turn(self, page: str, now: float, *, over: bool = False) -> None:
        """Compare what can be compared with a page, and let ranks return whose time has come, unless it is over.

        `page` is empty if its scrape was lost: then nothing is compared.
        """
        shown = {int(rank): float(value) for rank, value in STEPS.findall(page)}
        for file in self._folder.glob("count-*") if page else ():
            rank = int(file.name.removeprefix("count-"))
            own = json.loads(file.read_text(encoding="utf-8"))
            until = self._waiting.setdefault(rank, now + APPLIED_SECONDS)
            if shown.get(rank) != own and now < until:
                continue
            if shown.get(rank) != own:
                self.wrong.append(f"rank {rank} made {own} steps, the exporter shows {shown.get(rank)}")
            self.compared += 1
            del self._waiting[rank]
            file.unlink()
        for rank, child in list(self._living.items()):
            if not child.running:
                self._children.end(child.name)
                del self._living[rank]
                self.deaths += not over
                self._attempt[rank] += 1
                self._return_at[rank] = now + self._random.uniform(*AWAY_SECONDS)
        for rank, moment in list(self._return_at.items()):
            if now > moment and not over:
                del self._return_at[rank]
                self.start(rank)

    @property
    def living(self) -> int:
        """How many ranks have a process."""
        return len(self._living)


class Attackers:
    """One attack after the other, by another user, with a quiet time after each."""

    def __init__(self, children: Children, socket_path: Path, port: int) -> None:
        self._children, self._socket, self._port = children, socket_path, port
        self._names = itertools.cycle(name for name in ATTACKS if name != "none")
        self._next = self._until = 0.0
        self._attacks: list[tuple[float, float]] = []
        """When each began, and when its last process had ended."""
        self._running: list[Child] = []

    def turn(self, now: float) -> None:
        """Begin the next attack if its time has come; end one that is over."""
        if self._running and now > self._until:
            for child in self._running:
                self._children.end(child.name)
            self._running = []
            over = time.monotonic()
            self._attacks[-1] = (self._attacks[-1][0], over)
            self._next = over + QUIET_SECONDS
        if self._running or now < self._next:
            return
        name = next(self._names)
        self._attacks.append((now, math.inf))
        self._until = now + ATTACK_SECONDS + LATE_SECONDS
        words = [sys.executable, HERE / "hostile_attacks.py", name, self._socket, self._port, ATTACK_SECONDS]
        for uid in ATTACKS[name].uids:
            command = [str(word) for word in [*words, "--uid", uid]]
            self._running.append(self._children.start(f"attack-{uid}", command))

    @property
    def made(self) -> int:
        """How many attacks were begun."""
        return len(self._attacks)

    def quiet(self, moment: float) -> bool:
        """Whether no attack ran at a moment so far, nor had just ended."""
        return not any(began <= moment <= over + SETTLE_SECONDS for began, over in self._attacks)


class Driver:
    """A GPU whose driver hangs now and then; `hangs` are over, `seen` of which the exporter said so meanwhile."""

    def __init__(self, fake: FakeNvml) -> None:
        self._fake = fake
        self._began = time.monotonic()
        self.hangs = self.seen = 0
        self._hanging = self._said = False

    def turn(self, page: str, now: float) -> None:
        """Hang, or answer again; `page` is the latest one."""
        self._said |= self._hanging and HUNG.search(page) is not None
        hangs = (now - self._began) % HANG_EVERY > HANG_EVERY - HANG_SECONDS
        if hangs == self._hanging:
            return
        self._hanging = hangs
        self._fake.gpus[HUNG_GPU].block_ms = FOREVER if hangs else 0
        if not hangs:
            self.hangs += 1
            self.seen += self._said
            self._said = False


class SlowReaders:
    """Scrapers that take a page a few bytes at a time, all the while; `pages` is how many they got to the end of."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.begun = self.pages = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._read, daemon=True) for _ in range(SLOW_READERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Hang up."""
        self._over.set()
        for thread in self._threads:
            thread.join(5)

    def _read(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 5) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BYTES)
                self.begun += 1
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                while not self._over.wait(1.0) and connection.recv(SLOW_BYTES):
                    pass
                self.pages += 1
            self._over.wait(0.5)
