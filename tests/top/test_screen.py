"""The picture of an overview: sizes, widths and characters."""

from __future__ import annotations

import asyncio
import io
import math
import sys
import time

import pytest
from rich.cells import cell_len
from textual.widgets import Input

from tachograph.top.app import TopApp
from tachograph.top.command import picture
from tachograph.top.header import figures_of
from tachograph.top.overview import FiringAlert, GpuRow, Overview, RankRow, RunSummary, harmless
from tachograph.top.sparkline import curve, sparkline

DEADLINE = 120.0
ALERTS = tuple(FiringAlert(f"Alert{i}", "warning", 60.0, rank=str(rank)) for i in range(9) for rank in range(40))


def overview(name: str, ranks: int, gpus: int) -> Overview:
    """Return a run with these many ranks and GPUs, the last rank being the culprit."""
    run = RunSummary(name, "hung", 34.0, {"running": ranks}, ranks, step=1e6, loss=math.nan, nonfinite_ranks=1, mfu=0.4,
                     loss_history=(3.0, math.nan, 2.0), mfu_history=(0.4,) * 200)  # fmt: skip
    found = [RankRow(name, i, f"node-{i}", state="running", lag_seconds=-0.0001) for i in range(ranks)]
    found = [RankRow(name, ranks, name, state="running", marks=("culprit",), alerts=("RunHung",)), *found]
    cards = tuple(GpuRow(name, str(i), f"GPU-{i}", "NVIDIA", throttling={"thermal": 0.5}) for i in range(gpus))
    return Overview("run", "http://prometheus:9090", 0.0, (run,), tuple(found), cards, ALERTS, 16_384, ("a note",))


class Still:
    """A source of one overview."""

    view = "run"
    fetches_needed = 1

    def __init__(self, found: Overview) -> None:
        self.found = found

    def fetch(self, wanted: str = "") -> Overview:
        return self.found


def screen(app: TopApp) -> list[str]:
    """Return the lines on the screen."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("r", id="short", marks=pytest.mark.slow),
        pytest.param("a-very-long-name-of-a-run-" * 8, id="long", marks=pytest.mark.slow),
        pytest.param("大\u202e模型\x1b[" * 9, id="wide"),
    ],
)
@pytest.mark.parametrize(
    ("size", "count"), [((20, 6), 9), ((40, 10), 3), ((80, 24), 0), ((80, 24), 64), ((200, 50), 9)]
)
def test_every_picture_fits(name: str, size: tuple[int, int], count: int) -> None:
    """Whatever is shown, there are as many lines as the terminal has, none wider; at 24 lines the culprit is seen."""

    async def show() -> None:
        app = TopApp(source := Still(overview(name, count, count)), source.found, 3600.0)
        async with app.run_test(size=size) as pilot:
            for key in ("", "question_mark", "x", "slash", "escape", "space"):
                await pilot.press(*filter(None, [key]))
                if key == "slash":
                    app.query_one(Input).value = "x" * 99
                await pilot.pause()
                lines = screen(app)
                assert len(lines) == size[1]
                assert {cell_len(line) for line in lines} == {size[0]}
                assert "".join(lines).isprintable()
            if size[1] >= 24:
                assert any("culprit" in line for line in lines)
                assert any("and 6 more: Alert3" in line for line in lines) or size[1] > 24

    asyncio.run(show())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("r", id="short", marks=pytest.mark.slow),
        pytest.param("a-very-long-name-of-a-run-" * 8, id="long", marks=pytest.mark.slow),
        pytest.param("大\u202e模型\x1b[" * 9, id="wide"),
    ],
)
def test_one_picture_has_every_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a pipe every rank and GPU is there, no line is wider than asked for, and there are no keys."""
    for columns in (40, 120, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = picture(overview(name, 64, 64)).splitlines()
        assert max(map(cell_len, lines)) <= columns
        assert sum("running" in line for line in lines) == 64
        assert sum("thermal 50%" in line for line in lines) == 64 or columns == 40
        assert not any("quit" in line for line in lines)


def test_alerts_of_one_name_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ranks an alert names, it takes one line: its count, and the first of them."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = picture(overview("r", 1, 0)).splitlines()
    assert sum("Alert5" in line for line in lines) == 1
    assert any(line.startswith(" warning  Alert5  40: rank 0, rank 1, ") for line in lines)
    assert any(line.endswith(" for 60 s") for line in lines)


def test_names_cannot_steer_the_terminal() -> None:
    """Every text of an overview loses its control characters; numbers, absent values and the order stay."""
    evil = "a\x1b[2J\u202eb"
    run, rank = RunSummary(evil, "dead", ranks={evil: 1}), RankRow(evil, 1, alerts=(evil,))
    gpu = GpuRow(evil, "0", evil, throttling={evil: math.inf})
    found = Overview("node", evil, 1.0, (run,), (rank,), (gpu,), None, 1, (evil,))
    assert "a?[2J?b" in repr(harmless(found))
    assert repr(harmless(found)) == repr(found).replace(repr(evil)[1:-1], "a?[2J?b")


def test_a_loop_that_generates_shows_what_its_steps_go_into() -> None:
    """In place of its own time and its waits; what is next to nothing is left out."""
    parts = {"generate": 0.75, "reward": 0.0005, "update": 0.2, "idle": 0.05}
    run = RunSummary("rl", "running", None, {"running": 2}, 2, step_seconds=1.0, wait_seconds=0.05, parts_seconds=parts)
    text = figures_of(run, 120).plain
    assert "generate 750 ms (75%) · update 200 ms (20%) · idle 50 ms (5%)" in text
    assert "own" not in text


def test_lines_without_gpus_show_the_loss() -> None:
    """Where no GPU needs them and few ranks do, 24 lines are not half empty; tables go first."""

    async def show(ranks: int, gpus: int, last_drawn: str) -> list[str]:
        found = overview("r", ranks, gpus)
        app = TopApp(source := Still(found), source.found, 3600.0)
        end = time.monotonic() + DEADLINE
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            while not any(last_drawn in line for line in screen(app)) and time.monotonic() < end:
                await pilot.pause(0.02)
            return screen(app)

    shown = ((2, 0, "█"), (64, 0, "ranks, worst first"), (2, 3, "GPUs, worst first"))
    few, many, cards = (asyncio.run(show(*each)) for each in shown)
    assert sum("█" in line for line in few[12:]) >= 4
    assert any(line.startswith("─loss of r, 3.000 to 2.000─") for line in few)
    assert not any("GPU" in line for line in few[3:] if "Alert" not in line and "RANK" not in line)
    assert not any("loss of r" in line for line in many + cards)
    assert any("GPUs, worst first" in line for line in cards)


def test_curves() -> None:
    """Bars over several lines, the highest reaching the top; a gap is blank, a short past is as wide as it is long."""
    assert curve([0.0, 1.0, 2.0, math.nan, 4.0], 9, 2) == ["  ▁ █", "▁▅█ █"]
    assert curve([], 9, 2) == curve([math.nan], 9, 2) == ["", ""]


def test_sparklines() -> None:
    """The newest value is last, a gap is blank, noise looks flat, and a long history fits by its means."""
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, math.nan, 8.0], 8) == "▁ █"
    assert set(sparkline([0.41, 0.4102, 0.4099], 8)) <= {"▄", "▅"}
    assert sparkline([1.0] * 500 + [9.0] * 500, 10) == "▁▁▁▁▁█████"
    assert sparkline([], 8) == sparkline([math.nan], 8) == ""
    assert sparkline([0.0, 0.0], 8) == "▁▁"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_encodings(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding without the characters of a picture gets others, of the same widths; a name it lacks, `?`."""
    whole = picture(overview("大", 3, 3))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    text = picture(overview("大", 3, 3))
    text.encode(encoding)
    assert ("▌" in whole, "!     3 culprit" in text, "?" in text) == (True, True, True)
    assert "#" in text
