"""A picture (SVG) of the bytes that sketches of step times take by the number of steps, beside every step gathered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tachograph.report.markup import element, text

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 160, 20, 50
LABEL = 14
"""How far labels of lines that end together are apart."""
COLORS = ("#333", "#1f77b4", "#d62728", "#2ca02c", "#9467bd")

Point = tuple[float, float]
"""How many steps, and bytes."""


def crossing(gathered: Sequence[Point], sketch: Sequence[Point]) -> float | None:
    """Return the steps from which on the sketch is smaller, on a line of logarithms between two sizes; None if never.

    Both have points at the same numbers of steps.
    """
    gaps = [(math.log(steps), math.log(most / own)) for (steps, most), (_, own) in zip(gathered, sketch, strict=True)]
    for (before, gap), (after, next_gap) in pairwise(gaps):
        if gap <= 0 < next_gap:
            return math.exp(before - (after - before) * gap / (next_gap - gap))
    return None


def plot(lines: Mapping[str, Sequence[Point]]) -> str:
    """Return the picture, both axes logarithmic; the first line is every step gathered, crossings are dots on it."""
    points = [point for line in lines.values() for point in line]
    across, up = ([math.log10(value) for value in values] for values in zip(*points, strict=True))
    left, right, low, high = math.floor(min(across)), math.ceil(max(across)), math.floor(min(up)), math.ceil(max(up))

    def x(steps: float) -> float:
        return LEFT + (math.log10(steps) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def y(size: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(size) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def axes() -> Iterator[str]:
        for power in range(left, right + 1):
            at = x(10.0**power)
            yield element("path", d=f"M{at:.1f} {TOP}V{HEIGHT - BOTTOM}", stroke="#ddd")
            yield text(f"{10**power:,}", at, HEIGHT - BOTTOM + 18, text_anchor="middle")
        for power in range(low, high + 1):
            at = y(10.0**power)
            yield element("path", d=f"M{LEFT} {at:.1f}H{WIDTH - RIGHT}", stroke="#ddd")
            yield text(f"{10**power:,}", LEFT - 8, at + 4, text_anchor="end")
        yield text("steps", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, text_anchor="middle")
        yield text("bytes", LEFT + 4, TOP - 6)

    def curves() -> Iterator[str]:
        gathered = next(iter(lines.values()))
        colors = dict(zip(lines, COLORS, strict=False))
        label = 0.0
        for name, line in sorted(lines.items(), key=lambda each: -each[1][-1][1]):
            color = colors[name]
            label = max(label + LABEL, y(line[-1][1]) + 4)
            path = "L".join(f"{x(steps):.1f} {y(size):.1f}" for steps, size in line)
            yield element("path", d=f"M{path}", fill="none", stroke=color, stroke_width=2)
            yield text(name, WIDTH - RIGHT + 6, label, fill=color)
            if (steps := crossing(gathered, line)) is not None:
                yield element("circle", cx=f"{x(steps):.1f}", cy=f"{y(8 * steps):.1f}", r=4, fill=color)

    ground = element("rect", width=WIDTH, height=HEIGHT, fill="white")
    picture = "\n".join([ground, *axes(), *curves()])
    return element(
        "svg", picture, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", font_family="sans-serif",
        font_size=12,
    ) + "\n"  # fmt: skip
