"""The exporter stopped, ended, killed and started again: what was counted is exact, and its socket in order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest


def test_what_was_said_to_a_stopped_exporter_counts(exporter_at: Callable[..., Any]) -> None:
    """Frames sent while the exporter was stopped are read when it continues, up to the bye; no rank is blamed."""
    running = exporter_at("--no-gpu", "--ranks.frozen-after=2s")
    leaving, staying = running.speaker(rank=0), running.speaker(rank=1)
    leaving.hello()
    staying.hello()
    running.process.send_signal(signal.SIGSTOP)
    for count in range(50):
        leaving.state({"tokens_total": count})
    leaving.bye()
    leaving.close()
    time.sleep(3.5)  # longer than a rank may be silent, and than the exporter's own pulse
    running.process.send_signal(signal.SIGCONT)
    scrape = running.scrape()
    assert scrape.value("rank_state", run="llama-7b", rank=1, state="running") == 1
    running.eventually(lambda: running.scrape().value("rank_state", run="llama-7b", rank=0, state="finished") == 1)
    scrape = running.scrape()
    assert scrape.value("train_tokens_total", run="llama-7b", rank=0) == 49
    assert scrape.counted("frames_rejected", "rate") == 0


def test_a_sender_that_left_before_its_answer_counts(exporter_at: Callable[..., Any]) -> None:
    """A whole life is read after its sender has gone: that nobody is there for the answer to the hello is no death."""
    running = exporter_at("--no-gpu")
    brief = running.speaker(rank=0)
    running.process.send_signal(signal.SIGSTOP)
    who = {"run": "llama-7b", "rank": 0, "local_rank": 0, "world_size": 1, "attempt": 0, "pid": os.getpid()}
    brief.send(type="hello", **who)
    brief.state({"tokens_total": 7})
    brief.bye()
    brief.close()
    running.process.send_signal(signal.SIGCONT)
    running.eventually(lambda: running.scrape().value("rank_state", run="llama-7b", rank=0, state="finished") == 1)
    assert running.scrape().value("train_tokens_total", run="llama-7b", rank=0) == 7


class Load:
    """Eight processes' worth of ranks that speak ten times a second, whatever becomes of the exporter, on a thread."""

    KEYS = ("train_step_seconds_count", "train_productive_seconds_total")

    def __init__(self, running: Any) -> None:
        self.running = running
        self.counts = dict.fromkeys(range(8), 0)
        self.before = 0  # what processes counted that are gone
        self._speakers: dict[int, Any] = {}
        self._seq = dict.fromkeys(range(8), 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._round()
        self._round()  # the first may have found connections to an exporter that was killed

    @property
    def truth(self) -> int:
        return self.before + sum(self.counts.values())

    def replace(self, rank: int) -> None:
        """End a rank's process in its right mind; its successor counts from nothing. Only before the load begins."""
        for _ in range(3):
            self._say(rank)
        speaker = self._speakers.pop(rank)
        speaker.bye()
        speaker.close()
        self.before += self.counts[rank]
        self.counts[rank] = self._seq[rank] = 0

    def _speak(self) -> None:
        while not self._over.wait(0.1):
            self._round()

    def _round(self) -> None:
        for rank in self.counts:
            try:
                self._say(rank)
            except (OSError, ValueError):  # a killed exporter's last answer may be half a line
                self._speakers.pop(rank, None)

    def _say(self, rank: int) -> None:
        self.counts[rank] += rank + 1
        count = self.counts[rank]
        if rank not in self._speakers:
            speaker = self.running.speaker(rank=rank)
            speaker.seq = self._seq[rank]
            self._speakers[rank] = speaker
            speaker.hello(pid=rank + 100 * (self.before > 0))
        self._seq[rank] += 1
        step = {"schema": 3, "sum": float(count), "count": count, "buckets": {"0": count}}
        self._speakers[rank].state({"tokens_total": count, self.KEYS[1][6:]: count}, histograms={"step_seconds": step})

    def shown(self) -> list[float | None]:
        scrape = self.running.scrape()
        assert scrape.value("exporter_series_dropped_total", reason="counter_decrease") == 0
        return [scrape.value(key, run="llama-7b") for key in self.KEYS]


@pytest.mark.slow
def test_ten_kills_under_load_are_exact(exporter_at: Callable[..., Any]) -> None:
    """Killed at ten random moments, the exporter's sums never fall, and at the end they are the truth.

    Prometheus' increase() of what never falls is its rise, so all of them are exact; and so are the restarts.
    """
    random = Random(20)
    running = exporter_at("--no-gpu")
    load = Load(running)
    load.replace(3)
    last = [0.0, 0.0]
    with load:
        for _ in range(10):
            ends = time.monotonic() + random.uniform(0.0, 1.5)
            while time.monotonic() < ends:
                now = [value or 0.0 for value in load.shown()]
                assert all(before <= value for before, value in zip(last, now, strict=True)), (last, now)
                last = now
            running.stop(signal.SIGKILL)
            running.start()
    running.eventually(lambda: load.shown() == [load.truth, load.truth])
    assert running.scrape().value("train_restarts_total", run="llama-7b", rank=3) == 1
    assert running.scrape().value("train_restarts_total", run="llama-7b", rank=4) == 0


@pytest.mark.parametrize("spoil", ["gone", "torn", "of another boot", "a link", "of the future"])
def test_without_its_state_file_sums_begin_at_0(exporter_at: Callable[..., Any], spoil: str) -> None:
    """An invalid state file is logged in one line and not used: sums start at 0, and nothing is counted twice."""
    running = exporter_at("--no-gpu")
    load = Load(running)
    load.replace(3)
    file = running.socket.with_suffix(".state")
    with load:
        running.eventually(lambda: (load.shown()[0] or 0) > load.before)
        running.stop(signal.SIGKILL)
        kept = file.read_bytes()
        file.unlink()
        if spoil == "torn":
            file.write_bytes(kept[:-20])
        elif spoil == "of another boot":
            file.write_bytes(re.sub(rb'"boot":"[^"]*"', b'"boot":"x"', kept))
        elif spoil == "of the future":
            file.write_bytes(kept.replace(b'"version":1', b'"version":2'))
        elif spoil == "a link":
            (running.folder / "elsewhere").write_bytes(kept)
            file.symlink_to(running.folder / "elsewhere")
        counted = load.truth
        running.start()
        running.eventually(lambda: (load.shown()[0] or 0) > 0)
    shown = running.eventually(load.shown)
    assert 0 < shown[0] <= load.truth - counted + 8 * 9  # a frame of each rank may be in flight
    assert running.log.read_text().count("state file") == (spoil != "gone")
    assert "Traceback" not in running.log.read_text()


def test_a_state_file_that_cannot_be_written_costs_a_log_line(exporter_at: Callable[..., Any]) -> None:
    """The sums are still shown, and the log says once what a restart will lose."""
    running = exporter_at("--no-gpu", "--state-file=/proc/nowhere/x.state")
    load = Load(running)
    with load:
        running.eventually(lambda: load.shown()[0])
    running.eventually(lambda: load.shown() == [load.truth, load.truth])
    assert running.log.read_text().count("state file not written") == 1


def test_term_stops_it(exporter_at: Callable[..., Any]) -> None:
    """SIGTERM ends it with status 0, connections open or not, and the socket is gone."""
    running = exporter_at()
    speaker = running.speaker()
    speaker.hello()
    running.stop(signal.SIGTERM)
    assert running.process.returncode == 0
    assert not running.socket.exists()
    log = running.log.read_text()
    assert "msg=stopped" in log
    assert "rank died" not in log
    assert "Traceback" not in log


def test_a_stale_socket_is_replaced_and_a_live_one_respected(exporter_at: Callable[..., Any]) -> None:
    """A socket that a killed exporter left behind is replaced; one that is listened on is an error, and lives on."""
    running = exporter_at("--no-gpu")
    running.stop(signal.SIGKILL)
    assert running.socket.exists()
    running.start()
    assert running.speaker().hello()["ok"] is True
    second = subprocess.run(
        [sys.executable, "-m", "tachograph", "exporter", "--no-gpu", "--web.listen-address=127.0.0.1:0",
         f"--socket={running.socket}"], capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    assert second.returncode == 1
    assert "another exporter listens there" in second.stderr
    assert "Traceback" not in second.stderr
    assert running.speaker(rank=1).hello()["ok"] is True
    running.stop(signal.SIGINT)
    assert not running.socket.exists()
