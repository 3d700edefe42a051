"""Timelines: the phases of each chosen rank, the number of ranks in each phase, the alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tachograph.catalog.rank import PHASES
from tachograph.report.alert_episodes import MEANING, AlertEpisode
from tachograph.report.chosen_ranks import ChosenRank
from tachograph.report.figure import Figure, alert, begin
from tachograph.report.markup import element, safe, text
from tachograph.report.queries import SectionQueries, held
from tachograph.report.svg import PlotArea, Point, Scale, band, inside, span, stacked
from tachograph.servers.prometheus_api import TimeSeries
from tachograph.text import humanize
from tachograph.text.moments import iso

LEFT = 232
ROW, BAR = 19, 13
BANDS = 96
STATES = ("frozen", "dead", "failed", "finished")
"""States in which a rank is in no phase."""
WIDTH = 30
"""Minimum of seconds over which the longest phase is determined, so that several scrapes have a say."""
SHORT = 2
"""Bars of at most this many cells have no title of their own: there may be hundreds."""

Cells = dict[float, str]
"""The phase or state of a rank in the cell that ends at a time."""


def phases(queries: SectionQueries, ranks: Sequence[ChosenRank], episodes: Sequence[AlertEpisode]) -> Figure:
    """Return the timeline of the chosen ranks."""
    figure = Figure(
        "Ranks over time",
        "The longest phase of each rank in each interval, waits left out; the pale upper part of a row is the share of "
        "its steps that it waited for other ranks. The culprit is the row that differs, or the one that does not wait; "
        "a red line below a row marks where the rank was late. Ranks that alerts named come first, then the worst of "
        "the others.",
        queries,
    )
    if not ranks:
        return figure
    step, width, gone = queries.window.step, f"{max(queries.window.step, WIDTH)}s", "|".join(STATES)

    def ask(question: str) -> list[TimeSeries]:
        chosen = question.replace("$chosen", '$run,rank=~"$ranks"')
        return queries.range(chosen, ranks="|".join(each.rank for each in ranks), width=width)

    most = "max by (rank, phase) (avg_over_time(tachograph_train_recent_phase_seconds{$chosen}[$width]))"
    did = _cells(ask(f"topk by (rank) (1, {most})"), "phase")
    # A rank that is stuck makes no step that could say so: its exporter reports the phase, for half a cell or more.
    stuck = _cells(ask(f"max by (rank, phase) (tachograph_rank_phase_seconds{{$chosen}}) >= {step / 2:g}"), "phase")
    state = f'tachograph_rank_state{{$chosen,state=~"{gone}"}} == 1'
    ended = _cells(ask(f"max by (rank, state) ({state})"), "state")
    late = _cells(ask(f"max by (rank) {held('rank:late_ratio:mean{$chosen}')}"), "")
    waited = (
        "max by (rank) (avg_over_time(tachograph_train_recent_wait_seconds{$chosen}[$width])"
        " / (avg_over_time(tachograph_train_recent_step_seconds{$chosen}[$width]) > 0))"
    )
    waits = {
        series.labels["rank"]: [(time, min(value, 1.0)) for time, value in series.samples] for series in ask(waited)
    }
    if not (did or stuck or ended):
        return figure
    area = PlotArea(queries.window, LEFT, 8, ROW * len(ranks) + 4)
    seen: set[str] = set()
    parts: list[str] = []
    for i, each in enumerate(ranks):
        doing = did.get(each.rank, {}) | stuck.get(each.rank, {}) | ended.get(each.rank, {})
        seen.update(doing.values())
        parts += _row(area, each, 10 + ROW * i, doing)
        parts.append(_waits(area, 10 + ROW * i, waits.get(each.rank, ())))
        parts += [inside(area, (start, end), 7.0 + ROW * i + BAR, did) for did, start, end in stretches(doing, step)]
        parts.append(_late(area, 10 + ROW * i, late.get(each.rank, {})))
    parts += [begin(area, episode, area.top) for episode in episodes]
    figure.picture = area.picture(f"Phases of {humanize.plural(len(ranks), 'rank')} over time", parts)
    figure.legend = [(each, each) for each in (*PHASES, *STATES) if each in seen]
    figure.legend += [("waits", "waiting (upper part of a row)")] if waits else []
    figure.legend += [("late", "late (line below a row)")] if late else []
    return figure


def _cells(found: Iterable[TimeSeries], label: str) -> dict[str, Cells]:
    """Return, for each rank, the value of a label at each sample time."""
    cells: dict[str, Cells] = {}
    for series in found:
        own = cells.setdefault(series.labels["rank"], {})
        own.update(dict.fromkeys((time for time, _ in series.samples), series.labels.get(label, "")))
    return cells


def _row(area: PlotArea, rank: ChosenRank, y: float, cells: Cells) -> Iterator[str]:
    step = area.window.step
    where = f"{rank.instance}{f' GPU {rank.gpu}' if rank.gpu else ''}"
    name = element("title", safe(f"rank {rank.rank} on {where}: {rank.why}")) + safe(f"rank {rank.rank}")
    name += element("tspan", safe(f"  {where}"[:30]), class_="soft")
    yield element("text", name, x=LEFT - 8, y=y + BAR - 3, text_anchor="end", class_="row")
    short: dict[str, list[str]] = {}
    for did, start, end in stretches(cells, step):
        if end - start <= SHORT * step:
            x = area.x(start)
            short.setdefault(did, []).append(f"M{x:.1f} {y:.0f}h{max(area.x(end) - x, 1):.1f}v{BAR}H{x:.1f}z")
        else:
            title = f"rank {rank.rank}: {did} {iso(start)} to {iso(end)}"
            yield span(area, (start, end), y, BAR, style=f"fill-{did}", title=title)
    for did, shapes in short.items():
        yield element("path", d="".join(shapes), class_=f"fill-{did}")


def _waits(area: PlotArea, y: float, shares: Sequence[Point]) -> str:
    """Return the pale upper part of a row: its share of the height is the share of time that the rank waited."""
    row = Scale(PlotArea(area.window, area.left, y, BAR), 0.0, 1.0, ())
    full = [(time, 1.0) for time, _ in shares]
    return band(row, [(time, 1.0 - share) for time, share in shares], full, area.window.step, "waits")


def _late(area: PlotArea, y: float, cells: Cells) -> str:
    """Return the line below a row at the times at which the rank was late."""
    marks = [f"M{area.x(time - area.window.step):.1f} {y + BAR + 2:.0f}H{area.x(time):.1f}" for time in cells]
    return element("path", d="".join(marks), class_="late") if marks else ""


def stretches(cells: Mapping[float, str], step: int) -> Iterator[tuple[str, float, float]]:
    """Yield each phase or state with its start and end, equal neighbours merged."""
    start = end = 0.0
    doing = ""
    for time, did in sorted(cells.items()):
        if did != doing or time - end > 1.5 * step:
            if doing:
                yield doing, start, end
            doing, start = did, time - step
        end = time
    if doing:
        yield doing, start, end


def ranks_by_phase(queries: SectionQueries) -> Figure:
    """Return the number of ranks in each phase over time."""
    figure = Figure(
        "All ranks by phase",
        "Number of ranks in each phase, stacked; ranks that died, failed or froze are at the bottom. In a hang, one "
        "phase grows until it covers all others.",
        queries,
    )
    counted = {series.labels["phase"]: dict(series.samples) for series in
               queries.range("count by (phase) (tachograph_rank_phase_seconds{$run})", coarse=True)}  # fmt: skip
    gone = {series.labels["state"]: dict(series.samples) for series in queries.range(
        'count by (state) (tachograph_rank_state{$run,state=~"frozen|dead|failed"} == 1)', coarse=True)}  # fmt: skip
    layers = [(each, gone[each]) for each in STATES if each in gone]
    layers += [(each, counted[each]) for each in PHASES if each in counted]
    if not layers:
        return figure
    area = PlotArea(queries.window, LEFT, 8, BANDS)
    parts = stacked(area, layers, humanize.count, queries.window.coarse, whole=True)
    figure.picture = area.picture("Ranks in each phase over time", parts)
    figure.legend = [(each, each) for each, _ in layers]
    return figure


def alerts(queries: SectionQueries, episodes: Sequence[AlertEpisode], most: int = 24) -> Figure:
    """Return the alerts that fired over time, with a row for each alert."""
    figure = Figure("Alerts over time", "When each alert was firing; the most severe first.", queries)
    figure.nothing = "No alert fired."
    names = list(dict.fromkeys(episode.alert for episode in episodes))[:most]
    if not names:
        return figure
    area = PlotArea(queries.window, LEFT, 8, ROW * len(names) + 4)
    parts = [
        text(name, LEFT - 8, 10 + ROW * i + BAR - 3, text_anchor="end", class_="row") for i, name in enumerate(names)
    ]
    parts += [alert(area, each, 10 + ROW * names.index(each.alert), BAR) for each in episodes if each.alert in names]
    figure.picture = area.picture(f"Alerts over time: {', '.join(names)}", parts)
    figure.legend = [(f"alert-{kind}", MEANING[kind]) for kind in dict.fromkeys(each.kind for each in episodes)]
    return figure
