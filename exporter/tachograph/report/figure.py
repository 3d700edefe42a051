"""A figure of the report: a picture, what it shows, and the exact questions behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tachograph.report.asking import Asking
from tachograph.report.markup import element, safe, text
from tachograph.report.svg import Frame, Point, Scale, band, line, span
from tachograph.report.verdicts import Verdict
from tachograph.report.window import iso

LEFT = 64
HEIGHT = 150
STRIP = 10
"""Height of a strip of alerts above a chart."""


@dataclass(frozen=True)
class Mark:
    """Something that happened once: a shape, and what a reader of the picture is told."""

    time: float
    kind: str
    words: str


@dataclass
class Figure:
    """A title, a sentence on how to read it, a picture (empty: nothing to draw), a legend, notes."""

    title: str
    reading: str
    asking: Asking
    picture: str = ""
    legend: list[tuple[str, str]] = field(default_factory=list)
    """Style and words of each line or fill."""
    notes: list[str] = field(default_factory=list)
    nothing: str = "No data in this window."
    """What is said where there is no picture."""

    def html(self, identity: str) -> str:
        """Return the figure as markup."""
        body = f'<h2 id="{identity}">{safe(self.title)}</h2><p class="soft">{safe(self.reading)}</p>'
        if self.picture:
            body += f'<div class="scroll">{self.picture}</div>'
            body += f'<ul class="legend">{"".join(_key(*key) for key in self.legend)}</ul>' if self.legend else ""
        elif not self.asking.refused:
            body += f'<p class="none">{safe(self.nothing)}</p>'
        body += "".join(f'<p class="none">{safe(refusal)}</p>' for refusal in dict.fromkeys(self.asking.refused))
        body += "".join(f'<p class="soft">{safe(note)}</p>' for note in self.notes)
        body += questions(self.asking)
        return f'<section aria-labelledby="{identity}">{body}</section>'


def questions(asking: Asking) -> str:
    """Return the questions behind a picture, to be asked again."""
    if not asking.asked:
        return ""
    window, step = asking.window, asking.window.step
    between = f"# from {iso(window.start)} to {iso(window.end)}, every {step} s where nothing else is said\n"
    asked = "\n".join(dict.fromkeys(asking.asked)).replace(f"  # every {step} s", "")
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
    """A line of a chart, with its words and style."""

    words: str
    style: str
    points: Sequence[Point]
    coarse: bool = False
    """Its samples are a coarse step apart."""


def chart(
    asking: Asking,
    title: str,
    lines: Sequence[Line],
    form: Callable[[float], str],
    *,
    zero: bool = True,
    most: float | None = None,
    between: tuple[Sequence[Point], Sequence[Point]] | None = None,
    verdicts: Sequence[Verdict] = (),
    marks: Sequence[Mark] = (),
) -> str:
    """Return lines over time, under strips of the alerts that fired meanwhile; nothing where there is no sample."""
    window = asking.window
    if not any(each.points for each in lines):
        return ""
    names = list(dict.fromkeys(verdict.alert for verdict in verdicts))
    top = 8 + (STRIP + 4) * len(names) + (14 if marks else 0)
    frame = Frame(window, LEFT, top, HEIGHT)
    values = [value for each in lines for _, value in each.points]
    values += [value for edge in between or () for _, value in edge]
    scale = Scale.over(frame, values, zero=zero, most=most)
    parts = list(scale.axis(form))
    labelled: set[str] = set()
    for verdict in verdicts:
        y = 4.0 + (STRIP + 4) * names.index(verdict.alert)
        parts.append(alert(frame, verdict, y, STRIP))
        if verdict.alert not in labelled:
            labelled.add(verdict.alert)
            parts += [_label(frame, verdict, y + STRIP - 1), begin(frame, verdict, y + STRIP)]
    if between:
        parts.append(band(scale, *between, window.step, "band"))
    parts += [line(scale, each.points, window.coarse if each.coarse else window.step, each.style) for each in lines]
    parts += [_mark(frame, mark) for mark in marks]
    described = f"{title}: " + "; ".join(f"{each.words} {_range(each.points, form)}" for each in lines if each.points)
    return frame.picture(described, parts)


def _range(points: Sequence[Point], form: Callable[[float], str]) -> str:
    values = [value for _, value in points if value == value and abs(value) != float("inf")]  # noqa: PLR0124  (not NaN)
    return f"from {form(min(values))} to {form(max(values))}" if values else "not finite"


def alert(frame: Frame, verdict: Verdict, y: float, height: float) -> str:
    """Return the strip of an alert."""
    who = f" {verdict.named}" if verdict.named else ""
    title = f"{verdict.alert}{who}: {iso(verdict.fired)} to {iso(verdict.ended)}"
    return span(frame, (verdict.fired, verdict.ended), y, height, style=f"alert-{verdict.kind}", title=title)


def begin(frame: Frame, verdict: Verdict, top: float) -> str:
    """Return a line through the picture where an alert fired."""
    title = element("title", safe(f"{verdict.alert} fired {iso(verdict.fired)}"))
    return element("path", title, d=f"M{frame.x(verdict.fired):.1f} {top:.1f}V{frame.bottom:.1f}", class_="begin")


def _label(frame: Frame, verdict: Verdict, y: float) -> str:
    """Return an alert's name: before its strip where there is room, else after it."""
    x = frame.x(verdict.fired)
    if x - frame.left > 8 * len(verdict.alert):
        return text(verdict.alert, x - 4, y, text_anchor="end", class_="label")
    return text(verdict.alert, frame.x(verdict.ended) + 4, y, class_="label")


def _mark(frame: Frame, mark: Mark) -> str:
    x, top, bottom = frame.x(mark.time), frame.top, frame.bottom
    shape = {
        "restart": f"M{x:.1f} {top - 12:.1f}V{bottom:.1f}",
        "spike": f"M{x:.1f} {top - 12:.1f}l-4 7h8z",
        "checkpoint": f"M{x:.1f} {bottom - 4:.1f}l-4 4l4 4l4 -4z",
    }[mark.kind]
    title = element("title", safe(f"{mark.words} {iso(mark.time)}"))
    return element("path", title, d=shape, class_=f"mark-{mark.kind}")
