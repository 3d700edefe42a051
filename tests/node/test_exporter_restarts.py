"""The exporter stopped, ended, killed and started again: what was counted is exact, and its socket in order."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def test_what_was_said_to_a_stopped_exporter_counts(exporter_at: Callable[..., Any]) -> None:
    """Frames that waited while the exporter was stopped are read when it goes on, up to the bye; nobody is accused."""
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


def test_restart_under_load_is_exact(exporter_at: Callable[..., Any]) -> None:
    """Killed and started again while eight ranks speak, the exporter shows exactly what they counted."""
    running = exporter_at("--no-gpu")
    ranks: list[Any] = [None] * 8
    counts = [0] * 8

    def speak() -> None:
        for rank in range(8):
            counts[rank] += rank + 1
            try:
                if ranks[rank] is None:
                    speaker = running.speaker(rank=rank)
                    speaker.seq = counts[rank]
                    ranks[rank] = speaker
                    speaker.hello()
                step = {"schema": 3, "sum": float(counts[rank]), "count": counts[rank], "buckets": {"0": counts[rank]}}
                waits = {"collective_wait_seconds_total": {"all_reduce": counts[rank] / 2}}
                ranks[rank].state({"tokens_total": counts[rank], **waits}, histograms={"step_seconds": step})
            except OSError:
                ranks[rank] = None
        time.sleep(0.1)

    for _ in range(5):
        speak()
    running.stop(signal.SIGKILL)
    for _ in range(3):
        speak()
    running.start()
    for _ in range(5):
        speak()

    def exact() -> bool:
        scrape = running.scrape()
        return all(
            scrape.value("train_tokens_total", run="llama-7b", rank=rank) == counts[rank]
            and scrape.value("train_collective_wait_seconds_total", run="llama-7b", rank=rank, op="all_reduce")
            == counts[rank] / 2
            for rank in range(8)
        )

    running.eventually(exact, within=2.0)
    running.eventually(lambda: running.scrape().value("train_step_seconds_count", run="llama-7b") is not None)
    assert running.scrape().value("train_step_seconds_count", run="llama-7b") == sum(counts)
    assert running.scrape().value("exporter_series_dropped_total", reason="counter_decrease") == 0


def test_term_stops_within_a_second(exporter_at: Callable[..., Any]) -> None:
    """SIGTERM ends it with status 0 within 1 s, connections open or not, and the socket is gone."""
    running = exporter_at()
    speaker = running.speaker()
    speaker.hello()
    assert running.stop(signal.SIGTERM) < 1.0
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
         f"--socket={running.socket}"], capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    assert second.returncode == 2
    assert "another exporter listens there" in second.stderr
    assert "Traceback" not in second.stderr
    assert running.speaker(rank=1).hello()["ok"] is True
    running.stop(signal.SIGINT)
    assert not running.socket.exists()
