"""The live view: keys are pressed, and the screen is read; what a terminal gets at the start and at the end."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from tachograph.catalog import index as catalog
from tachograph.node.samples import GpuIdentity, Sample
from tachograph.servers.prometheus_api import Prometheus
from tachograph.top.app import TopApp
from tachograph.top.node_source import NodeSource
from tachograph.top.overview import OverviewSource
from tachograph.top.run_source import RunSource

QUICK = ("--interval", "0.3")
DEADLINE = 120.0


def train(played: Any, step: int = 100) -> None:
    """Have twelve ranks be at a step: rank 7 is dead, rank 4 in another phase, GPU 2 of 8 hot."""
    for rank in range(12):
        played.table.greet(rank, run="llama-7b", rank=rank, world_size=12)
        phase = "data" if rank == 4 else "backward"
        played.table.tell(rank, step, time=100.0, step=step, phase=phase, phase_since=99.5)
    played.table.lost(7)
    gpus = [GpuIdentity(str(gpu), f"GPU-{gpu}", "NVIDIA H100") for gpu in range(8)]
    read = [Sample(catalog.GPU_UTILIZATION, (gpu.index, gpu.uuid), 0.9) for gpu in gpus]
    played.serve(gpus, [*read, Sample(catalog.GPU_CLOCK_EVENT, ("2", "GPU-2", "hw_thermal_slowdown"), 1.0)])


class Live:
    """The app under a pilot, and what stands on its screen."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def lines(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    async def until(self, holds: Callable[[list[str]], Any]) -> list[str]:
        """Wait until the screen is as wanted, and return its lines."""
        end = time.monotonic() + DEADLINE
        while not holds(self.lines):
            if time.monotonic() > end:
                pytest.fail("not on the screen:\n" + "\n".join(self.lines))
            await self.pilot.pause(0.02)
        return self.lines

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)


def live(
    source: OverviewSource, look: Callable[[Live], Awaitable[None]], size: tuple[int, int] = (80, 24),
    interval: float = 0.3,
) -> TopApp:  # fmt: skip
    """Run the app on a screen of that size, look at it, and return it."""
    app = TopApp(source, source.fetch(), interval)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await look(Live(app, pilot))

    asyncio.run(run())
    return app


def first_rank(lines: list[str]) -> str:
    """Return the number in the first row of the ranks."""
    begins = next((i for i, line in enumerate(lines) if line.split()[:2] == ["RANK", "STATE"]), None)
    words = lines[begins + 1].strip("▌! ").split() if begins is not None else []
    return words[0] if words else ""


def shows(*words: str) -> Callable[[list[str]], bool]:
    """Return whether all of these are on the screen."""
    return lambda lines: all(any(word in line for line in lines) for word in words)


def test_keys(pages: Any, played: Any) -> None:
    """80 x 24: the dead rank and the hot GPU are first; every key does what the help says."""
    train(played)

    async def look(seen: Live) -> None:
        lines = await seen.until(lambda lines: first_rank(lines) == "7" and shows("q quit", "tab table")(lines))
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        assert re.match(r"▌ +2 ", lines[next(i for i, line in enumerate(lines) if "GPU   RANK" in line) + 1])
        await seen.press("s")
        await seen.until(lambda lines: first_rank(lines) == "0" and shows("ranks, by rank")(lines))
        await seen.press("r")
        await seen.until(lambda lines: first_rank(lines) == "11" and shows("by rank, reversed")(lines))
        await seen.press("down", "down")
        await seen.until(lambda lines: first_rank(lines) == "9")
        await seen.press("home")
        await seen.until(lambda lines: first_rank(lines) == "11")
        await seen.press("pagedown")
        await seen.until(lambda lines: first_rank(lines) not in {"11", ""})
        await seen.press("k", "end")
        await seen.until(lambda lines: any(re.match(" +0 running", line) for line in lines))
        await seen.press("slash", *"data")
        await seen.until(lambda lines: first_rank(lines) == "4" and shows("with 'data'")(lines))
        await seen.press("enter")
        await seen.until(shows("q quit", "with 'data'"))
        await seen.press("escape")
        await seen.until(lambda lines: shows("ranks, by rank, reversed")(lines) and not shows("with 'data'")(lines))
        await seen.press("tab", "s", "s")
        await seen.until(shows("━GPUs, by rank", "ranks, by rank, reversed"))
        await seen.press("question_mark")
        await seen.until(shows("ACTIVE     share of time"))
        await seen.press("x")
        await seen.until(shows("━GPUs, by rank"))
        await seen.press("space")
        await seen.until(shows(" PAUSED"))
        fetched = seen.app._fetcher.last
        train(played, 200)
        await seen.until(lambda _: seen.app._fetcher.last.overview.runs[0].step == 200)
        assert fetched is not seen.app._fetcher.last
        await seen.pilot.pause(0.6)
        assert shows("step 100")(seen.lines)
        await seen.press("space")
        await seen.until(shows("step 200"))
        await seen.press("slash", "q")
        await seen.until(shows("with 'q'"))
        await seen.press("escape", "q")

    assert live(NodeSource(pages.url), look).return_code == 0


def test_resize(pages: Any, played: Any) -> None:
    """The picture follows the terminal: wide ones show both tables side by side, tiny ones still show the worst."""
    train(played)

    async def look(seen: Live) -> None:
        await seen.until(shows("q quit"))
        await seen.pilot.resize_terminal(200, 50)
        await seen.until(lambda lines: any("ranks, worst" in line and "GPUs, worst" in line for line in lines))
        await seen.pilot.resize_terminal(30, 9)
        lines = await seen.until(lambda lines: first_rank(lines) == "7" and not any("GPUs" in line for line in lines))
        assert max(map(len, lines)) <= 30
        await seen.press("ctrl+d")

    assert live(NodeSource(pages.url), look).return_code == 0


def test_an_exporter_that_goes_and_comes(pages: Any, played: Any) -> None:
    """Without an answer the last picture stays, and the top line says for how long and why; then it continues."""
    train(played)

    async def look(seen: Live) -> None:
        await seen.until(shows("step 100"))
        pages.judged = None
        lines = await seen.until(lambda lines: re.match(r" no answer for [\d.]+ s: no exporter at http", lines[0]))
        assert shows("step 100")(lines)
        train(played, 300)
        await seen.until(lambda lines: shows("step 300")(lines) and not shows("no answer")(lines))
        good, pages.judged = pages.judged, '{"version": 1, "runs": [{}]}'
        await seen.until(
            lambda lines: (
                shows("no answer for")(lines) and "is not an answer from a tachograph exporter" in " ".join(lines)
            )
        )
        pages.judged = good
        await seen.until(lambda lines: not shows("no answer")(lines))

    live(NodeSource(pages.url), look)


@pytest.mark.e2e
def test_a_run_and_a_rank_asked_for(crowd: Any) -> None:
    """A filter finds a rank that is not among the worst, and esc brings the worst back."""

    async def look(seen: Live) -> None:
        await seen.until(lambda lines: first_rank(lines) == "43" and shows("6 of 64 ranks", "RunHung")(lines))
        await seen.press("slash", *"60", "enter")
        await seen.until(lambda lines: first_rank(lines) == "60")
        await seen.press("escape")
        await seen.until(lambda lines: first_rank(lines) == "43")

    live(RunSource("llama-70b", Prometheus(crowd.url), 6), look)


def test_a_terminal(see: Callable[..., Any], pages: Any, played: Any) -> None:
    """On a terminal: keys arrive, no mouse is taken, the screen is given back; signals end it, with their status."""
    train(played)
    seen = see("--exporter", pages.url, *QUICK)
    seen.until("7", "dead", "quit")
    assert "\x1b[?1000h" not in seen.raw
    seen.press("?")
    seen.until("share of time with work")
    seen.press("xq")
    assert seen.ended() == 0
    assert seen.raw.rindex("\x1b[?1049l") > seen.raw.rindex("\x1b[?1049h")
    for end, status in (("\x03", 0), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP)):
        seen = see("--exporter", pages.url, *QUICK)
        seen.until("quit")
        if isinstance(end, str):
            seen.press(end)
        else:
            seen.signal(end)
        assert seen.ended() == status
        assert "\x1b[?1049l" in seen.raw


def test_plain_terminals(see: Callable[..., Any], pages: Any, played: Any) -> None:
    """NO_COLOR takes the colours; a dumb terminal and one that cannot show the characters get one picture."""
    train(played)
    seen = see("--exporter", pages.url, *QUICK, NO_COLOR="1")
    seen.until("7", "dead", "quit")
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?[349][0-8][;m]", seen.raw)
    seen.press("q")
    assert seen.ended() == 0
    dumb = see("--exporter", pages.url, *QUICK, TERM="dumb")
    assert dumb.ended() == 0
    assert "\x1b" not in dumb.raw
    assert " DEAD  llama-7b" in dumb.raw
    old = see("--exporter", pages.url, *QUICK, PYTHONIOENCODING="latin-1")
    assert old.ended() == 0
    assert "\x1b[?1049h" not in old.raw
    assert re.search(r"! +7 dead ", re.sub(r"\x1b\[[0-9;]*m", "", old.raw))
