"""The live view, on a terminal of its own: keys are sent, and the screen is read."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

ABOUT = 'tachograph_exporter_info{version="0.1.0",python="3.11"} 1\n'
QUICK = ("--interval", "0.3")


def page(ranks: int = 12, gpus: int = 8, step: int = 100) -> str:
    """Return the page of a node: rank 7 is dead, rank 4 in another phase, GPU 2 hot."""
    lines = [ABOUT]
    for rank in range(ranks):
        own = f'run="llama-7b",rank="{rank}"'
        state, phase = "dead" if rank == 7 else "running", "data" if rank == 4 else "backward"
        lines += [
            f'tachograph_rank_info{{{own},local_rank="{rank}",world_size="{ranks}",attempt="0",gpu="",uuid=""}} 1\n',
            f'tachograph_rank_state{{{own},state="{state}"}} 1\n',
            f"tachograph_train_step{{{own}}} {step}\n",
            f'tachograph_rank_phase_seconds{{{own},phase="{phase}"}} 0.5\n',
        ]
    for gpu in range(gpus):
        own = f'gpu="{gpu}",uuid="GPU-{gpu}"'
        lines += [
            f'tachograph_gpu_info{{{own},name="NVIDIA H100"}} 1\n',
            f"tachograph_gpu_utilization_ratio{{{own}}} 0.9\n",
            f'tachograph_gpu_clock_event_active{{{own},reason="hw_thermal_slowdown"}} {int(gpu == 2)}\n',
        ]
    return "".join(lines)


def first_rank(lines: list[str]) -> str:
    """Return the number in the first row of the ranks."""
    begins = next((i for i, line in enumerate(lines) if line.split()[:2] == ["RANK", "STATE"]), None)
    words = lines[begins + 1].strip("▌! ").split() if begins is not None else []
    return words[0] if words else ""


def shows(*words: str) -> Callable[[list[str]], bool]:
    """Return whether all of these are on the screen."""
    return lambda lines: all(any(word in line for line in lines) for word in words)


def test_keys(see: Callable[..., Any], pages: Any) -> None:
    """80 x 24: the dead rank and the hot GPU are first; every key does what the help says."""
    pages.text = page()
    seen = see("--exporter", pages.url, *QUICK)
    lines = seen.until(lambda lines: first_rank(lines) == "7")
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert re.match(r"▌ +2 ", lines[next(i for i, line in enumerate(lines) if "GPU   RANK" in line) + 1])
    seen.press("s")
    seen.until(lambda lines: first_rank(lines) == "0" and shows("ranks, by rank")(lines))
    seen.press("r")
    seen.until(lambda lines: first_rank(lines) == "11")
    seen.press("\x1b[B\x1b[B")
    seen.until(lambda lines: first_rank(lines) == "9")
    seen.press("\x1b[H")
    seen.until(lambda lines: first_rank(lines) == "11")
    seen.press("\x1b[6~")
    seen.until(lambda lines: first_rank(lines) not in {"11", ""})
    seen.press("/data")
    seen.until(shows("/ data"))
    seen.until(lambda lines: first_rank(lines) == "4" and shows("with 'data'")(lines))
    seen.press("\r\x1b")
    seen.until(shows("q quit", "ranks, by rank, reversed ─"))
    seen.press("\tss")
    seen.until(shows("> GPUs, by rank"))
    seen.press("?")
    seen.until(shows("ACTIVE     share of time"))
    seen.press("x")
    seen.until(shows("> GPUs"))
    seen.press(" ")
    seen.until(shows(" PAUSED "))
    pages.text = page(step=200)
    asked = time.monotonic()
    seen.until(lambda _: time.monotonic() - asked > 1.0)
    assert shows("step 100")(seen.lines)
    seen.press(" ")
    seen.until(shows("step 200"))
    seen.press("q")
    assert seen.ended() == 0
    assert seen.raw.endswith("\x1b[?25h\x1b[?1049l")


def test_resize(see: Callable[..., Any], pages: Any) -> None:
    """The picture follows the terminal: wide ones show both tables side by side, tiny ones still show the worst."""
    pages.text = page()
    seen = see("--exporter", pages.url, *QUICK)
    seen.until(shows("q quit"))
    seen.resize(200, 50)
    lines = seen.until(lambda lines: any("ranks, worst" in line and "GPUs, worst" in line for line in lines))
    assert max(map(len, lines)) <= 200
    seen.resize(30, 9)
    lines = seen.until(lambda lines: first_rank(lines) == "7" and not any("GPUs" in line for line in lines))
    assert max(map(len, lines)) <= 30
    seen.press("\x04")
    assert seen.ended() == 0


def test_an_exporter_that_goes_and_comes(see: Callable[..., Any], pages: Any) -> None:
    """Without an answer the last picture stays, the top line says since when and why; it goes on by itself."""
    pages.text = page()
    seen = see("--exporter", pages.url, *QUICK)
    seen.until(shows("step 100"))
    pages.text = None
    lines = seen.until(lambda lines: re.match(r" no answer since [\d.]+ s: no exporter at http", lines[0]))
    assert shows("step 100")(lines)
    pages.text = page(step=300)
    seen.until(lambda lines: shows("step 300")(lines) and not shows("no answer")(lines))
    seen.signal(signal.SIGTERM)
    assert seen.ended() == 128 + signal.SIGTERM
    assert seen.raw.endswith("\x1b[?25h\x1b[?1049l")


def test_plain_terminals(see: Callable[..., Any], pages: Any) -> None:
    """NO_COLOR takes the colours, an encoding without the characters gets ASCII ones, Ctrl-C ends it as q does."""
    pages.text = page()
    seen = see("--exporter", pages.url, *QUICK, NO_COLOR="1", PYTHONIOENCODING="ascii")
    lines = seen.until(shows("q quit"))
    assert "".join(lines).isascii()
    assert any(line.startswith("!     7 dead") for line in lines)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", seen.raw)
    seen.press("\x03")
    assert seen.ended() == 0
    dumb = see("--exporter", pages.url, *QUICK, TERM="dumb")
    assert dumb.ended() == 0
    assert "\x1b" not in dumb.raw
    assert " DEAD  llama-7b" in dumb.raw


@pytest.mark.e2e
def test_a_run_and_a_rank_asked_for(see: Callable[..., Any], crowd: Any) -> None:
    """A filter finds a rank that is not among the worst, and the screen stays when Prometheus goes."""
    seen = see("llama-70b", "--prometheus", crowd.url, "--ranks", "6", *QUICK)
    seen.until(lambda lines: first_rank(lines) == "43" and shows("6 of 64 ranks", "RunHung")(lines))
    seen.press("/60\r")
    seen.until(lambda lines: first_rank(lines) == "60")
    seen.press("q")
    assert seen.ended() == 0
