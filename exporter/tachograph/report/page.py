"""The page: summary, alerts and figures in one HTML file that loads nothing and can be printed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template

from tachograph._version import __version__
from tachograph.catalog.rank import LOST_CAUSES, PHASES
from tachograph.report import charts, hardware, timeline
from tachograph.report.alert_episodes import MEANING, AlertEpisode, FiredAlerts, fired_alerts
from tachograph.report.chosen_ranks import choose
from tachograph.report.figure import Figure, query_list
from tachograph.report.markup import element, number, safe, table
from tachograph.report.queries import SectionQueries
from tachograph.report.run_summary import run_summary
from tachograph.report.svg import AXIS, PATTERNS, WIDTH, PlotArea, patterned
from tachograph.report.window import Window
from tachograph.servers.prometheus_api import Prometheus, PrometheusError
from tachograph.text import humanize
from tachograph.text.moments import iso

EPISODES_SHOWN = 40
SVG = "http://www.w3.org/2000/svg"
STYLES = tuple(dict.fromkeys((*PHASES, *timeline.STATES, *LOST_CAUSES, "hardware")))


def page(prometheus: Prometheus, run: str, window: Window, now: float) -> tuple[str, FiredAlerts]:
    """Return the report and the alerts that fired; raise PrometheusError if every query was refused."""
    asked: list[SectionQueries] = []

    def queries() -> SectionQueries:
        asked.append(SectionQueries(prometheus, run, window))
        return asked[-1]

    of_alerts, of_summary, of_choice = queries(), queries(), queries()
    fired = fired_alerts(of_alerts, now)
    known = list(run_summary(of_summary))
    ranks = choose(of_choice, fired.found)
    urgent = [each for each in fired.found if each.severity != "info"] or fired.found
    figures = [
        timeline.phases(of_choice, ranks, fired.pages()[:8]),
        timeline.ranks_by_phase(queries()),
        timeline.alerts(queries(), fired.found),
        charts.loss(queries(), fired.found),
        charts.mfu(queries(), urgent),
        charts.step_time(queries()),
        charts.lost_time(queries()),
        hardware.hardware(queries()),
        charts.checkpoints(queries(), fired.found),
    ]
    refused = [refusal for each in asked for refusal in each.refused]
    if refused and len(refused) == sum(len(each.asked) for each in asked):
        raise PrometheusError(refused[0])
    return document(
        run,
        window,
        headline=_sentence(fired),
        look="paged" if fired.pages() else "calm",
        found="Alerts",
        alerts=_alerts(fired, window) + query_list(of_alerts),
        summary=_summary(known, of_summary),
        figures=figures,
        made=now,
        source=prometheus.url,
        note="Alerts are as Prometheus evaluated them: Alertmanager may have silenced or inhibited some of them.",
    ), fired


def document(
    run: str,
    window: Window,
    *,
    headline: str,
    look: str,
    found: str,
    alerts: str,
    summary: str,
    figures: Sequence[Figure],
    made: float,
    source: str,
    note: str,
) -> str:
    """Return a page on a run and a window; `headline`, `alerts` and `summary` are markup, all else is text."""
    return _template().substitute(
        title=safe(f"{run}, {iso(window.start)} to {iso(window.end)}"),
        run=safe(run),
        start=iso(window.start),
        end=iso(window.end),
        length=humanize.span(window.end - window.start),
        headline=headline,
        look=look,
        patterns="".join(patterned(style, ("", *PATTERNS)[i % (len(PATTERNS) + 1)]) for i, style in enumerate(STYLES)),
        fills="\n".join(f".fill-{style} {{ fill: url(#fill-{style}); }}" for style in STYLES),
        found=safe(found),
        alerts=alerts,
        summary=summary,
        figures="\n".join(figure.html(f"figure-{i}") for i, figure in enumerate(figures)),
        version=safe(__version__),
        made=iso(made),
        source=safe(source),
        note=safe(note),
    )


def standalone(picture: str, area: PlotArea) -> str:
    """Return the picture of an area as an SVG file of its own, with the style sheet of the page."""
    sheet = _template().template.partition("<style>")[2].partition("</style>")[0].replace("$fills", "")
    ground = element("rect", width="100%", height="100%", fill="var(--page)")
    size = f"0 0 {WIDTH} {number(area.bottom + AXIS)}"
    return element("svg", element("style", sheet) + ground + picture, xmlns=SVG, viewBox=size) + "\n"


@cache
def _template() -> Template:
    return Template((files("tachograph.report") / "report.html").read_text(encoding="utf-8"))


def _sentence(fired: FiredAlerts) -> str:
    first = fired.first()
    if first is None:
        return "No alert fired on this run in this window."
    words = f" {safe(first.words)}" if first.words else ""
    book = f' <a href="{safe(first.runbook)}" rel="noreferrer">What usually helps</a>.' if first.runbook else ""
    return safe(in_words(fired, first)) + words + book


def in_words(fired: FiredAlerts, first: AlertEpisode) -> str:
    """Return what fired as a sentence: how many alerts, and which came first."""
    pages = len(fired.pages())
    count = humanize.plural(pages, "page") if pages else humanize.plural(len(fired.found), "alert")
    named = f", naming {first.named}" if first.named else ""
    when = f"before {iso(first.fired)}" if first.before else f"at {iso(first.fired)}"
    return f"{count}; the first was {first.alert} {when}{named}."


def _alerts(fired: FiredAlerts, window: Window) -> str:
    if not fired.found:
        return '<p class="none">No alert fired on this run or on its nodes in this window.</p>'
    alike: dict[tuple[tuple[str, str], ...], list[AlertEpisode]] = {}
    for episode in fired.found:
        alike.setdefault(tuple(sorted(episode.labels.items())), []).append(episode)
    rows = [_row(each, window) for each in list(alike.values())[:EPISODES_SHOWN]]
    html = table(
        "Alerts that fired, pages first", ("Alert", "Named", "Fired (UTC)", "Duration", "Text of the alert"), rows
    )
    more = [f"{humanize.count(count)} more of {name}" for name, count in sorted(fired.more.items())]
    if (left := len(alike) - EPISODES_SHOWN) > 0:
        more.insert(0, f"{humanize.count(left)} more")
    return html + (f'<p class="soft">Not shown: {safe(", ".join(more))}.</p>' if more else "")


def _row(alike: Sequence[AlertEpisode], window: Window) -> Sequence[str]:
    """Return the row of an alert with the same labels that fired once or more often."""
    first, last = alike[0], alike[-1]
    name = safe(first.alert)
    if first.runbook:
        name = f'<a href="{safe(first.runbook)}" rel="noreferrer">{name}</a>'
    when = f"{'before ' if first.before else ''}{iso(first.fired)}"
    if first.since is not None and first.since < first.fired - 1:
        when += f'<span class="why">true since {humanize.utc(first.since)}</span>'
    lasted = humanize.span(sum(max(each.ended - each.fired, 0) for each in alike))
    lasted = f'<span class="time">{"at least " if first.before or last.still else ""}{lasted}</span>'
    lasted += f'<span class="why">{len(alike)} times</span>' if len(alike) > 1 else ""
    lasted += f'<span class="why">still firing at {humanize.utc(window.end)}</span>' if last.still else ""
    return (
        f'{name}<span class="why {first.kind}">{MEANING[first.kind]}</span>',
        safe(first.named) or '<span class="soft">the run</span>',
        f'<span class="time">{when}</span>',
        lasted,
        safe(last.words or first.words) or '<span class="soft">–</span>',
    )


def _summary(known: Sequence[tuple[str, str]], queries: SectionQueries) -> str:
    rows = [(safe(name), safe(value)) for name, value in known]
    html = (
        table("Summary of this window", ("Quantity", "Value"), rows)
        if rows
        else '<p class="none">Nothing was recorded.</p>'
    )
    return html + query_list(queries)
