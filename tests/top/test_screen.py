"""What is drawn, without a terminal: sizes, widths, words and bars."""

from __future__ import annotations

import math

import pytest
from rich.cells import cell_len

from tachograph.top import words
from tachograph.top.facts import Alert, Facts, Gpu, Rank, Run
from tachograph.top.glyphs import ASCII, UNICODE, glyphs_for
from tachograph.top.keys import decoded
from tachograph.top.screen import KEYS, frame
from tachograph.top.sparkline import sparkline
from tachograph.top.wishes import Wishes

ALERTS = tuple(Alert(f"Alert{i}", "warning", 60.0, rank=str(rank)) for i in range(9) for rank in range(40))


def facts(name: str, ranks: int, gpus: int) -> Facts:
    """Return a run with these many ranks and GPUs, the last rank being the culprit."""
    run = Run(name, "hung", 34.0, {"running": ranks}, ranks, step=1e6, loss=math.nan, nonfinite_ranks=1, mfu=0.4,
              loss_history=(3.0, math.nan, 2.0), mfu_history=(0.4,) * 200)  # fmt: skip
    found = [Rank(name, i, f"node-{i}", state="running", lag_seconds=-0.0001) for i in range(ranks)]
    found = [Rank(name, ranks, name, state="running", marks=("culprit",), alerts=("RunHung",)), *found]
    cards = tuple(Gpu(name, str(i), f"GPU-{i}", "NVIDIA", throttling={"thermal": 0.5}) for i in range(gpus))
    return Facts("run", "http://prometheus:9090", 0.0, (run,), tuple(found), cards, ALERTS, 16_384, ("a note",))


@pytest.mark.parametrize("name", ["r", "a-very-long-name-of-a-run-" * 8, "大模型" * 9], ids=["short", "long", "wide"])
@pytest.mark.parametrize(
    ("size", "count"), [((20, 6), 9), ((40, 10), 3), ((80, 24), 0), ((80, 24), 64), ((200, 50), 9)]
)
def test_every_picture_fits(name: str, size: tuple[int, int], count: int) -> None:
    """Whatever is shown, there are as many lines as the terminal has, none wider; at 24 lines the culprit is seen."""
    for glyphs in (UNICODE, ASCII):
        for wishes in (Wishes(), Wishes(help=True), Wishes(editing=True, filter="x" * 99), Wishes(paused=True)):
            lines = frame(facts(name, count, count), wishes, size, glyphs, "no answer since 3 s: nobody is there")
            assert len(lines) == size[1]
            assert max(cell_len(line.plain) for line in lines) <= size[0]
    plain = [line.plain for line in frame(facts(name, count, count), Wishes(), size, UNICODE)]
    if size[1] >= 24:
        assert any("culprit" in line for line in plain)
        assert any("and 6 more: Alert3" in line for line in plain) or size[1] > 24


def test_one_picture_has_every_row() -> None:
    """Without a height every rank and GPU is there, and no keys."""
    plain = [line.plain for line in frame(facts("r", 64, 64), Wishes(), (120, None), UNICODE)]
    assert sum("running" in line for line in plain) == 64
    assert sum("thermal 50%" in line for line in plain) == 64
    assert not any(KEYS in line for line in plain)


def test_alerts_of_one_name_share_a_line() -> None:
    """However many ranks an alert names, it takes one line: its count, and the first of them."""
    plain = [line.plain for line in frame(facts("r", 1, 0), Wishes(), (80, None), UNICODE)]
    assert sum("Alert5" in line for line in plain) == 1
    assert any(line.startswith(" warning  Alert5  40: rank 0, rank 1, ") for line in plain)


def test_numbers() -> None:
    """Zero, absent and NaN are three things; no number is longer than its column."""
    assert [words.duration(x) for x in (None, 0.0, -0.0001, 0.0123, 8.128, 64.25, math.nan)] == [
        "-", "0 ms", "0 ms", "12 ms", "8.13 s", "64.2 s", "NaN",
    ]  # fmt: skip
    assert [words.age(x) for x in (None, -1.0, 9.94, 9.96, 119.4, 120.0, 7300.0, 9e5)] == [
        "-", "0.0 s", "9.9 s", "10 s", "119 s", "2 min", "2.0 h", "10 d",
    ]  # fmt: skip
    assert [words.short(x) for x in (0.0, 950.0, 12_345.0, 999_900.0, 3_940_000.0, 1.2e10, math.inf)] == [
        "0", "950", "12.3k", "1.00M", "3.94M", "12.0G", "Inf",
    ]  # fmt: skip
    assert [words.percent(x) for x in (None, 0.0, 0.415, math.nan)] == ["-", "0%", "42%", "NaN"]


def test_sparklines() -> None:
    """The newest value is last, a gap is blank, noise looks flat, and a long history fits by its means."""
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, math.nan, 8.0], 8) == "▁ █"
    assert set(sparkline([0.41, 0.4102, 0.4099], 8)) <= {"▄", "▅"}
    assert sparkline([1.0] * 500 + [9.0] * 500, 10) == "▁▁▁▁▁█████"
    assert sparkline([], 8) == sparkline([math.nan], 8) == ""
    assert sparkline([0.0, 0.0], 8) == "▁▁"
    assert sparkline([1, 8], 8, ASCII.bars).isascii()


def test_what_a_terminal_sends() -> None:
    """Sequences in one read are told apart; what nobody uses is no key, and never text."""
    assert list(decoded("\x1b[A\x1bOBq\x1b[6~\x1b[15~\x1b[1;5C\t\x7f/ä")) == [
        "up", "down", "q", "page down", "tab", "backspace", "/", "ä",
    ]  # fmt: skip
    assert list(decoded("\x1b")) == ["escape"]


def test_encodings() -> None:
    """What cannot be written in an encoding is never drawn."""
    assert glyphs_for("utf-8") is UNICODE
    assert glyphs_for("latin-1") is glyphs_for("ascii") is glyphs_for("no-such") is ASCII
    assert all(text.isascii() for text in vars(ASCII).values())
