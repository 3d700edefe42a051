"""The page: head, verdicts, facts and figures in one file that opens anywhere, loads nothing and prints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template

from tachograph._version import __version__
from tachograph.catalog.rank import LOST_CAUSES, PHASES
from tachograph.prometheus_api import Prometheus, PrometheusError
from tachograph.report import charts, hardware, timeline
from tachograph.report.asking import Asking
from tachograph.report.chosen_ranks import choose
from tachograph.report.facts import facts
from tachograph.report.figure import questions
from tachograph.report.markup import safe, table
from tachograph.report.svg import PATTERNS, patterned
from tachograph.report.verdicts import MEANING, Verdict, Verdicts, verdicts
from tachograph.report.window import Window, clock, iso, length

VERDICTS_SHOWN = 40
STYLES = tuple(dict.fromkeys((*PHASES, *timeline.STATES, *LOST_CAUSES, "hardware")))


def page(prometheus: Prometheus, run: str, window: Window, now: float) -> tuple[str, Verdicts]:
    """Return the report, and what fired; raise PrometheusError where no question at all was answered."""
    asked: list[Asking] = []

    def asking() -> Asking:
        asked.append(Asking(prometheus, run, window))
        return asked[-1]

    of_alerts, of_facts, of_choice = asking(), asking(), asking()
    fired = verdicts(of_alerts, now)
    known = list(facts(of_facts))
    ranks = choose(of_choice, fired.found)
    urgent = [each for each in fired.found if each.severity != "info"] or fired.found
    figures = [
        timeline.phases(of_choice, ranks, fired.pages()[:8]),
        timeline.crowd(asking()),
        timeline.alerts(asking(), fired.found),
        charts.loss(asking(), fired.found),
        charts.mfu(asking(), urgent),
        charts.step_time(asking()),
        charts.lost_time(asking()),
        hardware.hardware(asking()),
        charts.checkpoints(asking(), fired.found),
    ]
    refused = [refusal for each in asked for refusal in each.refused]
    if refused and len(refused) == sum(len(each.asked) for each in asked):
        raise PrometheusError(refused[0])
    return _template().substitute(
        title=safe(f"{run}, {iso(window.start)} to {iso(window.end)}"),
        run=safe(run),
        start=iso(window.start),
        end=iso(window.end),
        length=length(window.end - window.start),
        verdict=_sentence(fired),
        look="verdict" if fired.pages() else "calm",
        patterns="".join(patterned(style, ("", *PATTERNS)[i % (len(PATTERNS) + 1)]) for i, style in enumerate(STYLES)),
        fills="\n".join(f".fill-{style} {{ fill: url(#fill-{style}); }}" for style in STYLES),
        verdicts=_verdicts(fired, window) + questions(of_alerts),
        facts=_facts(known, of_facts),
        figures="\n".join(figure.html(f"figure-{i}") for i, figure in enumerate(figures)),
        version=safe(__version__),
        made=iso(now),
        prometheus=safe(prometheus.url),
    ), fired


@cache
def _template() -> Template:
    return Template((files("tachograph.report") / "report.html").read_text(encoding="utf-8"))


def _sentence(fired: Verdicts) -> str:
    first = fired.first()
    if first is None:
        return "No alert fired on this run in this window."
    return safe(in_words(fired, first))


def in_words(fired: Verdicts, first: Verdict) -> str:
    """Return what fired in a sentence: how much of it, and what came first."""
    pages = len(fired.pages())
    kind = "page" if pages else "alert"
    count = pages or len(fired.found)
    named = f", naming {first.named}" if first.named else ""
    when = f"before {iso(first.fired)}" if first.before else f"at {iso(first.fired)}"
    return f"{count} {kind}{'s' * (count != 1)}; the first was {first.alert} {when}{named}."


def _verdicts(fired: Verdicts, window: Window) -> str:
    if not fired.found:
        return '<p class="none">No alert fired on this run or on its nodes in this window.</p>'
    alike: dict[tuple[tuple[str, str], ...], list[Verdict]] = {}
    for verdict in fired.found:
        alike.setdefault(tuple(sorted(verdict.labels.items())), []).append(verdict)
    rows = [_row(each, window) for each in list(alike.values())[:VERDICTS_SHOWN]]
    html = table("What fired, pages first", ("Alert", "Named", "Fired (UTC)", "For", "In its rule’s words"), rows)
    more = [f"{count:,} more of {name}" for name, count in sorted(fired.more.items())]
    if (left := len(alike) - VERDICTS_SHOWN) > 0:
        more.insert(0, f"{left:,} more")
    return html + (f'<p class="soft">Not shown: {safe(", ".join(more))}.</p>' if more else "")


def _row(alike: Sequence[Verdict], window: Window) -> Sequence[str]:
    """Return the row of an alert that named the same once or more often."""
    first, last = alike[0], alike[-1]
    name = safe(first.alert)
    if first.runbook:
        name = f'<a href="{safe(first.runbook)}" rel="noreferrer">{name}</a>'
    when = f"{'before ' if first.before else ''}{iso(first.fired)}"
    if first.since is not None and first.since < first.fired - 1:
        when += f'<span class="why">true since {clock(first.since)}</span>'
    lasted = length(sum(max(each.ended - each.fired, 0) for each in alike))
    lasted = ("at least " if first.before or last.still else "") + lasted
    lasted += f'<span class="why">{len(alike)} times</span>' if len(alike) > 1 else ""
    lasted += f'<span class="why">still at {clock(window.end)}</span>' if last.still else ""
    return (
        f'{name}<span class="why {first.kind}">{MEANING[first.kind]}</span>',
        safe(first.named) or '<span class="soft">the run</span>',
        f'<span class="time">{when}</span>',
        lasted,
        safe(last.words or first.words) or '<span class="soft">–</span>',
    )


def _facts(known: Sequence[tuple[str, str]], asking: Asking) -> str:
    rows = [(safe(name), safe(value)) for name, value in known]
    html = table("Facts of this window", ("What", "Value"), rows) if rows else '<p class="none">Nothing is known.</p>'
    return html + questions(asking)
