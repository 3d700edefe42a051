"""Shared by the node's tests: clocks to turn by hand, a rank's end of the socket, a whole exporter to start."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tachograph.catalog.rank import STATES
from tachograph.node.clock import Clock
from tachograph.node.histograms import HistogramSample
from tachograph.node.ranks.frames import Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.shown_ranks import ShownRanks
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample
from tests import waiting
from tests.forking import Forking

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0
NOT_OURS = 2**22 + 1
"""No process has this pid: a speaker is as if behind a proxy, and dies with its connection, not with the tests."""


@dataclass
class HandClock:
    """A clock that stands still until it is moved."""

    now: float = 1000.0
    epoch: float = 1_763_690_000.0

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, wall=lambda: self.epoch + self.now - 1000.0)

    def turn(self, seconds: float, tick: Callable[[], object] | None = None) -> None:
        """Go on by `seconds`, in steps of one second with a tick after each where one is given."""
        end = self.now + seconds
        while tick is not None and self.now + 1.0 < end:
            self.now += 1.0
            tick()
        self.now = end
        if tick is not None:
            tick()


@dataclass
class TwoGpus:
    """The GPU facts of a node with two known GPUs."""

    known: tuple[GpuIdentity, ...] = (
        GpuIdentity("0", "GPU-aaaa", "NVIDIA H100 80GB HBM3"),
        GpuIdentity("1", "GPU-bbbb", "NVIDIA H100 80GB HBM3"),
    )

    def snapshot(self) -> GpuSnapshot | None:
        return None

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return self.known

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        return None

    def processes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        known = any(gpu.uuid == uuid for gpu in self.known)
        return {"bf16": 989.4e12, "fp8": 1978.9e12}.get(precision) if known else None


class Table(RankTable):
    """A rank table with a shorter way to speak to it; any object stands for a connection."""

    ME, OTHER = Peer(1000, 4242), Peer(1000, 4243)

    def greet(self, link: object, peer: Peer = ME, run: str = "r", rank: int = 0, **over: Any) -> Any:
        return self.hello(link, Hello(v=1, run=run, rank=rank, pid=over.pop("pid", peer.pid), **over), peer)

    def tell(self, link: object, seq: int = 1, time: float = 100.0, **over: Any) -> None:
        self.heard(link)
        self.state(link, State(v=1, seq=seq, time=time, **over))

    def samples(self) -> list[Sample | HistogramSample]:
        return ShownRanks(self).samples()

    def shown(self) -> dict[tuple[str, ...], float | None]:
        return {(s.metric.name[11:], *s.labels): getattr(s, "value", None) for s in self.samples()}

    def states(self, run: str = "r", rank: str = "0") -> list[str]:
        shown = self.shown()
        return [state for state in STATES if shown.get(("rank_state", run, rank, state))]


class Speaker:
    """A rank's end of the socket, as any language could write it."""

    def __init__(self, path: Path, run: str = "llama-7b", rank: int = 0, **hello: object) -> None:
        self.run, self.rank, self.seq = run, rank, 0
        self.extra = hello
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self._lines = self.socket.makefile("rb")

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, **frame: object) -> None:
        self.raw(json.dumps({"v": 1, **frame}).encode() + b"\n")

    def answer(self) -> dict[str, object]:
        """Return the next answer; an empty object once the exporter hung up."""
        return json.loads(self._lines.readline() or b"{}")

    def hello(self, **over: object) -> dict[str, object]:
        frame = {"run": self.run, "rank": self.rank, "local_rank": self.rank, "world_size": 8, "attempt": 0}
        self.send(type="hello", **{"pid": NOT_OURS, **frame, **self.extra, **over})
        return self.answer()

    def state(self, metrics: dict[str, object] | None = None, **over: object) -> None:
        self.seq += 1
        frame = {"seq": self.seq, "time": time.time(), "step": self.seq, "metrics": metrics or {}}
        self.send(type="state", **{**frame, **over})

    def bye(self, **over: object) -> None:
        self.send(type="bye", **{"outcome": "finished", **over})

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


def _values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


class Scrape:
    """One scrape, by series."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def values(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """The values of all series; reading all of a page takes 20 ms."""
        return _values(self.text)

    def value(self, name: str, **labels: object) -> float | None:
        """Return the value of exactly this series, None where it is absent; the prefix may be left out."""
        full = name if name.startswith(("tachograph_", "process_")) else f"tachograph_{name}"
        lines = (line for line in self.text.splitlines(keepends=True) if line.startswith(full))
        return _values("".join(lines)).get((full, frozenset((key, str(text)) for key, text in labels.items())))

    def counted(self, kind: str, reason: str) -> float:
        """Return a count of the exporter's own, which is there from the start."""
        value = self.value(f"exporter_{kind}_total", reason=reason)
        assert value is not None, f"{reason} is not pre-created"
        return value


class OwnConnection(http.client.HTTPConnection):
    """A connection to an exporter's own unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=DEADLINE)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE)
        self.sock.connect(self._path)


@dataclass
class Running:
    """A whole exporter in a process of its own."""

    folder: Path
    flags: tuple[str, ...]
    forking: Forking
    speakers: list[Speaker] = field(default_factory=list)
    page: bytes = b""

    def __post_init__(self) -> None:
        self.socket = self.folder / "rank.sock"
        self.own = self.folder / "rank.web.sock"
        self.log = self.folder / "log"
        self.start()

    def start(self) -> None:
        """Start, or start again in the same place, and wait until it serves."""
        flags = ("--web.listen-address=127.0.0.1:0", f"--socket={self.socket}", *self.flags)
        with self.log.open("w") as log:
            self.process = self.forking.start("tests.forking_exporter", *flags, errors=log.fileno())
        self.process.file.close()
        found = self.eventually(lambda: re.search(r"msg=serving address=(\S+)", self.log.read_text()))
        self.url = f"http://{found[1]}"

    def eventually(self, condition: Callable[[], object], within: float = DEADLINE, pause: float = 0.01) -> object:
        """Return what the condition gives once it is true; fail after `within` seconds."""
        began = time.monotonic()
        while not (result := condition()):
            if time.monotonic() > began + within or self.process.poll() is not None:
                pytest.fail(f"not within {within} s; log:\n{self.log.read_text()}")
            waiting.pause(began, least=pause)
        return result

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(self.url + path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            return response.status, {name.lower(): text for name, text in response.headers.items()}, response.read()

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
        """Return status and body of an answer through the unix socket, where the kernel says who asks."""
        return self._answer(OwnConnection(self.own), path, method, headers)

    def stranger(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
        """Return the same over TCP, where nothing says who asks."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=DEADLINE)
        return self._answer(connection, path, method, headers)

    @staticmethod
    def _answer(
        connection: http.client.HTTPConnection, path: str, method: str, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        with closing(connection):
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            response = connection.getresponse()
            return response.status, response.read()

    def scrape(self) -> Scrape:
        """Return a page newer than that of the scrape before: the exporter makes one a tick, for all who ask."""
        page = self.eventually(lambda: page if (page := self.get("/metrics")[2]) != self.page else None, pause=0.03)
        self.page = page
        return Scrape(page.decode())

    def speaker(self, run: str = "llama-7b", rank: int = 0, **hello: object) -> Speaker:
        speaker = Speaker(self.socket, run, rank, **hello)
        self.speakers.append(speaker)
        return speaker

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Send a signal and return the seconds until the process has ended."""
        start = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(DEADLINE)
        return time.monotonic() - start

    def end(self) -> None:
        for speaker in self.speakers:
            speaker.close()
        self.process.close()


@pytest.fixture
def hand() -> HandClock:
    """A clock to turn by hand."""
    return HandClock()


@pytest.fixture(scope="session")
def two_gpus() -> TwoGpus:
    """A node with two known GPUs."""
    return TwoGpus()


@pytest.fixture
def table_of(hand: HandClock) -> Callable[..., Table]:
    """Make a rank table by that clock: `table_of(gpus, ranks=2)`, with limits as keywords."""
    return lambda gpus, **limits: Table(Limits(**limits), hand.clock, gpus)


@pytest.fixture
def table(table_of: Callable[..., Table], two_gpus: TwoGpus) -> Table:
    """A rank table of a node with two GPUs."""
    return table_of(two_gpus)


@pytest.fixture(scope="session")
def scrape_of() -> type[Scrape]:
    """Read a scrape by series."""
    return Scrape


@pytest.fixture(scope="session")
def speak() -> type[Speaker]:
    """Open a rank's end of a socket."""
    return Speaker


@pytest.fixture(scope="module")
def exporter_at(forking: Forking) -> Iterator[Callable[..., Running]]:
    """Start exporters, each in a short folder of its own that other users can reach; all end with the module."""
    with ExitStack() as stack:

        def start(*flags: str) -> Running:
            # A unix socket's path has at most 107 bytes, and the folders of pytest are closed to other users.
            folder = Path(tempfile.mkdtemp(prefix="tachograph-node-test-"))
            stack.callback(shutil.rmtree, folder)
            folder.chmod(0o755)
            running = Running(folder, flags, forking)
            stack.callback(running.end)
            return running

        yield start


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The promtool to check with, from the unpacked tools or the PATH."""
    unpacked = ROOT / ".tools/bookworm/usr/bin/promtool"
    found = str(unpacked) if unpacked.exists() else shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not here: neither unpacked under .tools nor on the PATH")
    return Path(found)
