"""A figure of the report: a picture, how to read it, and the queries behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tachograph.report.alert_episodes import AlertEpisode
from tachograph.report.markup import element, safe, text
from tachograph.report.queries import SectionQueries
from tachograph.report.svg import PlotArea, Point, Scale, band, line, span
from tachograph.report.window import Window
from tachograph.text.moments import iso

LEFT = 64
HEIGHT = 150
STRIP = 10
"""Height of the bar of an alert above a chart."""


@dataclass(frozen=True)
class Mark:
    """An event at a point in time: its kind, which is its shape, and its description."""

    time: float
    kind: str
    words: str


@dataclass
class Figure:
    """A title, how to read the picture, the picture (empty if there is nothing to draw), a legend, notes."""

    title: str
    reading: str
    queries: SectionQueries | None = None
    picture: str = ""
    legend: list[tuple[str, str]] = field(default_factory=list)
    """Style and label of each line or fill."""
    notes: list[str] = field(default_factory=list)
    nothing: str = "No data in this window."
    """The text that replaces an empty picture."""

    def html(self, identity: str) -> str:
        """Return the figure as HTML."""
        body = f'<h2 id="{identity}">{safe(self.title)}</h2><p class="soft">{safe(self.reading)}</p>'
        if self.picture:
            body += f'<div class="scroll">{self.picture}</div>'
            body += f'<ul class="legend">{"".join(_key(*key) for key in self.legend)}</ul>' if self.legend else ""
        elif self.queries is None or not self.queries.refused:
            body += f'<p class="none">{safe(self.nothing)}</p>'
        refused = () if self.queries is None else self.queries.refused
        body += "".join(f'<p class="none">{safe(refusal)}</p>' for refusal in dict.fromkeys(refused))
        body += "".join(f'<p class="soft">{safe(note)}</p>' for note in self.notes)
        body += "" if self.queries is None else query_list(self.queries)
        return f'<section aria-labelledby="{identity}">{body}</section>'


def query_list(queries: SectionQueries) -> str:
    """Return the queries behind a section, to be run again, as HTML."""
    if not queries.asked:
        return ""
    window, step = queries.window, queries.window.step
    between = f"# from {iso(window.start)} to {iso(window.end)}, every {step} s unless noted otherwise\n"
    asked = "\n".join(dict.fromkeys(queries.asked)).replace(f"  # every {step} s", "")
    listed = "\n".join(map(safe, (between + asked).splitlines()))
    return f"<details><summary>Queries</summary><pre>{listed}</pre></details>"


def _key(style: str, words: str) -> str:
    if style.startswith(("s", "cross", "mark")):
        shape = {"cross": "M9 3l8 8m0 -8l-8 8", "mark-restart": "M13 1V13", "mark-checkpoint": "M13 3l-4 4l4 4l4 -4z",
                 "mark-spike": "M13 1l-4 6h8z"}.get(style, "M0 7H26")  # fmt: skip
        classes = style if style[0] != "s" else f"line {style}"
        drawn = element("path", d=shape, class_=classes)
    else:
        drawn = element("rect", width=26, height=14, class_=f"fill-{style}")
    return (
        f"<li>{element('svg', drawn, viewBox='0 0 26 14', width=26, height=14, aria_hidden='true')} {safe(words)}</li>"
    )


@dataclass(frozen=True)
class Line:
    """A line of a chart, with its label and style."""

    words: str
    style: str
    points: Sequence[Point]
    coarse: bool = False
    """Whether its samples are a coarse step apart."""


def chart(
    window: Window,
    title: str,
    lines: Sequence[Line],
    form: Callable[[float], str],
    *,
    zero: bool = True,
    most: float | None = None,
    between: tuple[Sequence[Point], Sequence[Point]] | None = None,
    episodes: Sequence[AlertEpisode] = (),
    marks: Sequence[Mark] = (),
) -> str:
    """Return lines over time, below bars of the alerts that fired; empty if there is no sample."""
    if not any(each.points for each in lines):
        return ""
    names = list(dict.fromkeys(episode.alert for episode in episodes))
    top = 8 + (STRIP + 4) * len(names) + (14 if marks else 0)
    area = PlotArea(window, LEFT, top, HEIGHT)
    values = [value for each in lines for _, value in each.points]
    values += [value for edge in between or () for _, value in edge]
    scale = Scale.over(area, values, zero=zero, most=most)
    parts = list(scale.axis(form))
    labelled: set[str] = set()
    for episode in episodes:
        y = 4.0 + (STRIP + 4) * names.index(episode.alert)
        parts.append(alert(area, episode, y, STRIP))
        if episode.alert not in labelled:
            labelled.add(episode.alert)
            parts += [_label(area, episode, y + STRIP - 1), begin(area, episode, y + STRIP)]
    if between:
        parts.append(band(scale, *between, window.step, "band"))
    parts += [line(scale, each.points, window.coarse if each.coarse else window.step, each.style) for each in lines]
    parts += [_mark(area, mark) for mark in marks]
    described = f"{title}: " + "; ".join(f"{each.words} {_range(each.points, form)}" for each in lines if each.points)
    return area.picture(described, parts)


def _range(points: Sequence[Point], form: Callable[[float], str]) -> str:
    values = [value for _, value in points if value == value and abs(value) != float("inf")]  # noqa: PLR0124  (not NaN)
    return f"from {form(min(values))} to {form(max(values))}" if values else "not finite"


def alert(area: PlotArea, episode: AlertEpisode, y: float, height: float) -> str:
    """Return the bar of an alert."""
    who = f" {episode.named}" if episode.named else ""
    title = f"{episode.alert}{who}: {iso(episode.fired)} to {iso(episode.ended)}"
    return span(area, (episode.fired, episode.ended), y, height, style=f"alert-{episode.kind}", title=title)


def begin(area: PlotArea, episode: AlertEpisode, top: float) -> str:
    """Return a vertical line at the time at which an alert fired."""
    title = element("title", safe(f"{episode.alert} fired {iso(episode.fired)}"))
    return element("path", title, d=f"M{area.x(episode.fired):.1f} {top:.1f}V{area.bottom:.1f}", class_="begin")


def _label(area: PlotArea, episode: AlertEpisode, y: float) -> str:
    """Return the name of an alert: before its bar if there is room, else after it."""
    x = area.x(episode.fired)
    if x - area.left > 8 * len(episode.alert):
        return text(episode.alert, x - 4, y, text_anchor="end", class_="label")
    return text(episode.alert, area.x(episode.ended) + 4, y, class_="label")


def _mark(area: PlotArea, mark: Mark) -> str:
    x, top, bottom = area.x(mark.time), area.top, area.bottom
    shape = {
        "restart": f"M{x:.1f} {top - 12:.1f}V{bottom:.1f}",
        "spike": f"M{x:.1f} {top - 12:.1f}l-4 7h8z",
        "checkpoint": f"M{x:.1f} {bottom - 4:.1f}l-4 4l4 4l4 -4z",
    }[mark.kind]
    title = element("title", safe(f"{mark.words} {iso(mark.time)}"))
    return element("path", title, d=shape, class_=f"mark-{mark.kind}")
