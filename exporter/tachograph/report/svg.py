"""Inline SVG: plots with a time axis, lines, areas, bars and marks, coloured by the style sheet of the page.

No plot depends on colour alone: lines differ in their dashes, areas and bars in their patterns and labels. Nothing is
drawn where there is no sample: a gap stays a gap, and a value that is not finite is a cross.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tachograph.report.markup import element, number, safe, text
from tachograph.report.window import Window
from tachograph.text import humanize
from tachograph.text.moments import iso

WIDTH = 960
RIGHT = 28
AXIS = 34
"""Height of the time axis: its labels, and the day below the first one."""

LARGEST = 1e300
"""Beyond it, and below its inverse, arithmetic on an axis would leave the range of a double."""

Point = tuple[float, float]


@dataclass(frozen=True)
class PlotArea:
    """The part of a picture that has the time axis: maps times to x coordinates."""

    window: Window
    left: float
    top: float
    height: float

    def x(self, time: float) -> float:
        """Return the x coordinate of a time, clamped to the area."""
        share = (time - self.window.start) / (self.window.end - self.window.start)
        return self.left + min(max(share, 0.0), 1.0) * (WIDTH - RIGHT - self.left)

    @property
    def bottom(self) -> float:
        """Return the y coordinate of the time axis."""
        return self.top + self.height

    def picture(self, title: str, parts: Iterable[str]) -> str:
        """Return the whole picture; screen readers read the title."""
        height = self.bottom + AXIS
        body = element("title", safe(title)) + "".join(self._axis()) + "".join(parts)
        return element("svg", body, viewBox=f"0 0 {WIDTH} {number(float(height))}", role="img", class_="picture")

    def _axis(self) -> Iterator[str]:
        gaps = self.window.ticks()
        fine = len(gaps) > 1 and gaps[1] - gaps[0] < 60
        days: set[str] = set()
        for tick in gaps:
            x = self.x(tick)
            yield element("path", d=f"M{x:.1f} {self.top:.1f}V{self.bottom:.1f}", class_="grid")
            yield text(
                humanize.utc(tick, "%H:%M:%S" if fine else "%H:%M"),
                x,
                self.bottom + 15,
                class_="tick",
                text_anchor="middle",
            )
            if (today := humanize.utc(tick, "%Y-%m-%d")) not in days:
                days.add(today)
                yield text(today, x, self.bottom + 28, class_="tick", text_anchor="middle")
        yield element("path", d=f"M{self.left:.1f} {self.bottom:.1f}H{WIDTH - RIGHT}", class_="axis")


@dataclass(frozen=True)
class Scale:
    """The value axis, from `low` to `high` with labels at `ticks`; logarithmic if the values span a factor of 1000."""

    area: PlotArea
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    @classmethod
    def over(
        cls, area: PlotArea, values: Iterable[float], *, zero: bool, most: float | None = None, whole: bool = False
    ) -> Scale:
        """Return a scale over the values that are finite.

        `zero`: it includes 0; `most`: the highest possible value; `whole`: labels are whole numbers, as of things.
        """
        found = [min(max(value, -LARGEST), LARGEST) for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(found), max(found)
        if not zero and low > 1 / LARGEST and high / 1000 > low:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            every = -(-len(powers) // 6)
            return cls(area, 10.0 ** powers[0], 10.0 ** powers[-1], tuple(10.0**p for p in powers[::every]), True)
        low, high = (min(low, 0.0), max(high, 0.0)) if zero else (low, high)
        if high - low < 1e-9 * max(abs(low), abs(high), 1 / LARGEST):
            room = 1.0 if zero and not high else 0.1 * abs(low) or 1.0
            low, high = low - (0.0 if zero else room), high + room
        gap = max(_round_gap((high - low) / 4), 1.0 if whole else 0.0)
        first, last = math.floor(low / gap + 1e-9), math.ceil(high / gap - 1e-9)
        if most is not None:
            last = min(last, math.ceil(most / gap - 1e-9))
        ticks = tuple(gap * i for i in range(first, last + 1))
        return cls(area, ticks[0], max(ticks[-1], ticks[0] + gap), ticks)

    def y(self, value: float) -> float:
        """Return the y coordinate of a finite value, clamped to the area."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.log else value
        return self.area.bottom - min(max((at - low) / (high - low), 0.0), 1.0) * self.area.height

    def axis(self, form: Callable[[float], str]) -> Iterator[str]:
        """Yield the labels and grid lines."""
        for tick in self.ticks:
            y = self.y(tick)
            yield element("path", d=f"M{self.area.left:.1f} {y:.1f}H{WIDTH - RIGHT}", class_="grid")
            yield text(form(tick), self.area.left - 6, y + 4, class_="tick", text_anchor="end")


def _round_gap(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(size * power for size in (1, 2, 5, 10) if size * power >= raw * 0.999)


def runs(points: Sequence[Point], step: float) -> Iterator[list[Point]]:
    """Yield the sequences of finite points without a gap between them."""
    stretch: list[Point] = []
    for point in points:
        broken = not math.isfinite(point[1]) or (stretch and point[0] - stretch[-1][0] > 1.5 * step)
        if broken and stretch:
            yield stretch
            stretch = []
        if math.isfinite(point[1]):
            stretch.append(point)
    if stretch:
        yield stretch


def line(scale: Scale, points: Sequence[Point], step: float, style: str) -> str:
    """Return a line; an isolated point is a dot, a value that is not finite a cross at the edge of the area."""
    area, path, parts = scale.area, [], []
    for stretch in runs(points, step):
        places = [f"{area.x(time):.1f} {scale.y(value):.1f}" for time, value in stretch]
        if len(places) == 1:
            x, y = places[0].split()
            parts.append(element("circle", cx=x, cy=y, r=2, class_=f"dot {style}"))
        else:
            path.append("M" + "L".join(places))
    if path:
        parts.insert(0, element("path", d="".join(path), class_=f"line {style}"))
    for time, value in points:
        if not math.isfinite(value):
            parts.append(cross(area.x(time), area.bottom - 6 if value < 0 else area.top + 6, f"{value} at {iso(time)}"))
    return "".join(parts)


def cross(x: float, y: float, title: str) -> str:
    """Return the mark for a value that is not finite."""
    arms = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
    return element("path", element("title", safe(title)), d=arms, class_="cross")


def band(scale: Scale, low: Sequence[Point], high: Sequence[Point], step: float, style: str) -> str:
    """Return the area between two lines that have the same times."""
    floor = dict(low)
    path = []
    for stretch in runs([point for point in high if math.isfinite(floor.get(point[0], math.nan))], step):
        top = [f"{scale.area.x(time):.1f} {scale.y(value):.1f}" for time, value in stretch]
        under = [f"{scale.area.x(time):.1f} {scale.y(floor[time]):.1f}" for time, _ in reversed(stretch)]
        path.append("M" + "L".join(top + under) + "Z")
    return element("path", d="".join(path), class_=style) if path else ""


def stacked(
    area: PlotArea,
    layers: Sequence[tuple[str, Mapping[float, float]]],
    form: Callable[[float], str],
    step: float,
    *,
    whole: bool = False,
) -> list[str]:
    """Return areas of styles and samples, stacked in this order, with the labels of their axis, perhaps whole ones."""
    times = sorted(set().union(*(samples for _, samples in layers)))
    floor, edges = dict.fromkeys(times, 0.0), []
    for style, samples in layers:
        top = {time: floor[time] + max(samples.get(time, 0.0), 0.0) for time in times}
        edges.append((style, list(floor.items()), list(top.items())))
        floor = top
    scale = Scale.over(area, floor.values(), zero=True, whole=whole)
    return [*scale.axis(form), *(band(scale, low, high, step, f"fill-{style}") for style, low, high in edges)]


def span(area: PlotArea, between: tuple[float, float], y: float, height: float, *, style: str, title: str) -> str:
    """Return a bar from one time to another, at least wide enough to be seen."""
    x = area.x(between[0])
    width = max(area.x(between[1]) - x, 1.5)
    return element("rect", element("title", safe(title)), x=x, y=y, width=width, height=height, class_=style)


def inside(area: PlotArea, between: tuple[float, float], baseline: float, words: str) -> str:
    """Return the label of a bar, empty if the bar has no room for it."""
    start, end = map(area.x, between)
    room = end - start > 7.0 * len(words) + 8
    return text(words, (start + end) / 2, baseline, class_="inside", text_anchor="middle") if room else ""


PATTERNS = {
    "diagonal": "M-2 2l4-4M0 8l8-8M6 10l4-4",
    "horizontal": "M0 2h8M0 6h8",
    "vertical": "M2 0v8M6 0v8",
    "cross": "M0 0l8 8M8 0l-8 8",
    "dots": "M1 2h2M5 6h2",
    "back": "M-2 6l4 4M0 0l8 8M6 -2l4 4",
}


def patterned(style: str, pattern: str) -> str:
    """Return the definition of the fill `url(#fill-STYLE)`: the colour of a style under a pattern of lines."""
    ground = element("rect", width=8, height=8, class_=style)
    lines = element("path", d=PATTERNS[pattern], class_="hatch") if pattern else ""
    return element("pattern", ground + lines, id=f"fill-{style}", width=8, height=8, patternUnits="userSpaceOnUse")
