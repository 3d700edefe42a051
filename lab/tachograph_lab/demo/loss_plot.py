"""The loss of a run with a supervisor and of one without, over time: in characters, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

from tachograph.report.markup import element, safe
from tachograph.report.markup import text as words_at
from tachograph.report.page import standalone
from tachograph.report.svg import PlotArea, Point, Scale, line
from tachograph.report.window import Window
from tachograph.text.humanize import significant
from tachograph_lab.demo.resilient_run import FaultMade, StepMade

CUT = 8.0
"""Losses are cut off here: that of a model that knows nothing yet is 6."""

GAP_SECONDS = 5
"""Two steps that are further apart are not joined by a line."""

LEFT, TOP, HEIGHT = 64.0, 44.0, 220.0
WITH, WITHOUT = "with the supervisor", "without"


def curve(steps: Sequence[StepMade]) -> list[Point]:
    """Return the loss over time, cut off; of losses in a row that are not finite one in a while."""
    points: list[Point] = []
    for one in steps:
        if math.isfinite(one.loss):
            points.append((one.time, min(one.loss, CUT)))
        elif not points or math.isfinite(points[-1][1]) or one.time - points[-1][0] > GAP_SECONDS:
            points.append((one.time, math.nan))
    return points


def in_characters(steps: Sequence[StepMade], without: Sequence[StepMade], width: int, height: int) -> list[Text]:
    """Return both in so many characters, a dot for the run with a supervisor and a cross for the other."""
    of_with, of_without = curve(steps), curve(without)
    times = [time for time, _ in (*of_with, *of_without)]
    values = [value for _, value in (*of_with, *of_without) if math.isfinite(value)]
    begin, seconds, low = min(times), max(max(times) - min(times), 1e-9), min(values)
    cells = [[" "] * width for _ in range(height)]
    for points, mark in ((of_without, "×"), (of_with, "•")):
        for time, value in points:
            if math.isfinite(value):
                row = round((CUT - value) / (CUT - low) * (height - 1))
                cells[row][round((time - begin) / seconds * (width - 1))] = mark
    lines = []
    for row, cell in enumerate(cells):
        label = significant(CUT - (CUT - low) * row / (height - 1), 2) if row % 3 == 0 else ""
        drawn = Text(f"{label:>5} ┤", "dim")
        for character in cell:
            drawn.append(character, {"×": "red", "•": "bold green"}.get(character, ""))
        lines.append(drawn)
    minutes = f"{seconds / 60:.1f} min"
    lines.append(Text(f"{'':>5} └{'─' * width}", "dim"))
    lines.append(Text.assemble((f"{'':>7}0{minutes:>{width - 1}}", "dim")))
    lines.append(Text.assemble(" " * 7, ("• ", "bold green"), WITH, "   ", ("× ", "red"), WITHOUT))
    return lines


def picture(steps: Sequence[StepMade], without: Sequence[StepMade], faults: Sequence[FaultMade]) -> str:
    """Return both as an SVG file, with a line at each fault."""
    of_with, of_without = curve(steps), curve(without)
    times = [time for time, _ in (*of_with, *of_without)]
    area = PlotArea(Window.between(min(times), max(times)), LEFT, TOP, HEIGHT)
    scale = Scale.over(area, [value for _, value in (*of_with, *of_without)], zero=False, most=CUT)
    parts = list(scale.axis(lambda value: significant(value, 2)))
    for fault in faults:
        x = area.x(fault.time)
        title = element("title", safe(fault.text))
        parts.append(element("path", title, d=f"M{x:.1f} {TOP - 8:.1f}V{area.bottom:.1f}", class_="begin"))
        parts.append(words_at(fault.text, x, TOP - 12, class_="label", text_anchor="middle"))
    parts += [line(scale, of_without, GAP_SECONDS, "s1"), line(scale, of_with, GAP_SECONDS, "s0")]
    for x, style, label in ((LEFT, "s0", WITH), (LEFT + 180, "s1", WITHOUT)):
        parts.append(element("path", d=f"M{x:.1f} 10h26", class_=f"line {style}"))
        parts.append(words_at(f"loss {label}", x + 32, 14))
    return standalone(area.picture("Loss with and without the supervisor", parts), area)
