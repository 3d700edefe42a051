"""Who did what when: a row of phases for each chosen rank, and bands that count all ranks by phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tachograph.catalog.rank import PHASES
from tachograph.prometheus_api import Series
from tachograph.report.asking import Asking, held
from tachograph.report.chosen_ranks import ChosenRank
from tachograph.report.figure import Figure, alert, begin
from tachograph.report.markup import element, safe, text
from tachograph.report.svg import Frame, Point, Scale, band, inside, span
from tachograph.report.verdicts import MEANING, Verdict
from tachograph.report.window import iso

LEFT = 232
ROW, BAR = 19, 13
BANDS = 96
STATES = ("frozen", "dead", "failed", "finished")
"""States in which a rank is in no phase; `frozen` shows the last one."""
WIDTH = 30
"""Seconds of which a moment's phase is the longest one, at least: a step may take ten, and is not to be taken apart."""
SHORT = 2
"""Spans of at most this many cells are drawn without a title of their own: there may be hundreds."""

Cells = dict[float, str]
"""What a rank did in the cell that ends at a time."""


def phases(asking: Asking, ranks: Sequence[ChosenRank], verdicts: Sequence[Verdict]) -> Figure:
    """Return the timeline of the chosen ranks."""
    figure = Figure(
        "Ranks over time",
        "What each rank did most of each moment; the pale upper part of a row is the share of time in which it could "
        "only wait for the others. The culprit is the row that differs, or that does not wait; a red line under a row "
        "marks where its rank was late. Ranks that alerts named come first, then the worst of the others.",
        asking,
    )
    if not ranks:
        return figure
    step, width, gone = asking.window.step, f"{max(asking.window.step, WIDTH)}s", "|".join(STATES)

    def ask(question: str) -> list[Series]:
        chosen = question.replace("$chosen", '$run,rank=~"$ranks"')
        return asking.range(chosen, ranks="|".join(each.rank for each in ranks), width=width)

    most = "sum by (rank, phase) (increase(tachograph_train_phase_seconds_total{$chosen}[$width])) > 0"
    did = _cells(ask(f"topk by (rank) (1, {most})"), "phase")
    # A rank that is stuck from before a cell until after it may not count: its exporter still says where it is.
    stuck = _cells(ask("max by (rank, phase) (tachograph_rank_phase_seconds{$chosen}) > " + str(step)), "phase")
    state = f'tachograph_rank_state{{$chosen,state=~"{gone}"}} == 1'
    ended = _cells(ask(f"max by (rank, state) ({state})"), "state")
    late = _cells(ask(f"max by (rank) {held('rank:lateness:ratio{$chosen}')}"), "")
    waited = "sum by (rank) (rate(tachograph_train_collective_wait_seconds_total{$chosen}[$rated]))"
    waits = {
        series.labels["rank"]: [(time, min(value, 1.0)) for time, value in series.samples] for series in ask(waited)
    }
    if not (did or stuck or ended):
        return figure
    frame = Frame(asking.window, LEFT, 8, ROW * len(ranks) + 4)
    seen: set[str] = set()
    parts: list[str] = []
    for i, each in enumerate(ranks):
        doing = did.get(each.rank, {}) | stuck.get(each.rank, {}) | ended.get(each.rank, {})
        seen.update(doing.values())
        parts += _row(frame, each, 10 + ROW * i, doing)
        parts.append(_waits(frame, 10 + ROW * i, waits.get(each.rank, ())))
        parts += [inside(frame, (start, end), 7.0 + ROW * i + BAR, did) for did, start, end in _stretches(doing, step)]
        parts.append(_late(frame, 10 + ROW * i, late.get(each.rank, {})))
    parts += [begin(frame, verdict, frame.top) for verdict in verdicts]
    figure.picture = frame.picture(f"What {len(ranks)} ranks did over time", parts)
    figure.legend = [(each, each) for each in (*PHASES, *STATES) if each in seen]
    figure.legend += [("waits", "waits (upper part of a row)")] if waits else []
    figure.legend += [("late", "late (line under a row)")] if late else []
    return figure


def _cells(found: Iterable[Series], label: str) -> dict[str, Cells]:
    """Return, for each rank, the value of a label at each moment."""
    cells: dict[str, Cells] = {}
    for series in found:
        own = cells.setdefault(series.labels["rank"], {})
        own.update(dict.fromkeys((time for time, _ in series.samples), series.labels.get(label, "")))
    return cells


def _row(frame: Frame, rank: ChosenRank, y: float, cells: Cells) -> Iterator[str]:
    step = frame.window.step
    where = f"{rank.instance}{f' GPU {rank.gpu}' if rank.gpu else ''}"
    name = element("title", safe(f"rank {rank.rank} on {where}: {rank.why}")) + safe(f"rank {rank.rank}")
    name += element("tspan", safe(f"  {where}"[:30]), class_="soft")
    yield element("text", name, x=LEFT - 8, y=y + BAR - 3, text_anchor="end", class_="row")
    short: dict[str, list[str]] = {}
    for did, start, end in _stretches(cells, step):
        if end - start <= SHORT * step:
            x = frame.x(start)
            short.setdefault(did, []).append(f"M{x:.1f} {y:.0f}h{max(frame.x(end) - x, 1):.1f}v{BAR}H{x:.1f}z")
        else:
            title = f"rank {rank.rank}: {did} {iso(start)} to {iso(end)}"
            yield span(frame, (start, end), y, BAR, style=f"fill-{did}", title=title)
    for did, shapes in short.items():
        yield element("path", d="".join(shapes), class_=f"fill-{did}")


def _waits(frame: Frame, y: float, shares: Sequence[Point]) -> str:
    """Return the pale upper part of a row: as much of its height as the rank waited of the time."""
    row = Scale(Frame(frame.window, frame.left, y, BAR), 0.0, 1.0, ())
    full = [(time, 1.0) for time, _ in shares]
    return band(row, [(time, 1.0 - share) for time, share in shares], full, frame.window.step, "waits")


def _late(frame: Frame, y: float, cells: Cells) -> str:
    """Return the line under a row at the times at which its rank was late."""
    marks = [f"M{frame.x(time - frame.window.step):.1f} {y + BAR + 2:.0f}H{frame.x(time):.1f}" for time in cells]
    return element("path", d="".join(marks), class_="late") if marks else ""


def _stretches(cells: Mapping[float, str], step: int) -> Iterator[tuple[str, float, float]]:
    """Yield what was done, from when to when, cells of the same put together."""
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


def crowd(asking: Asking) -> Figure:
    """Return how many ranks of the run were in each phase, all ranks counted."""
    figure = Figure(
        "All ranks by phase",
        "Ranks in each phase at a moment, one on the other; those that died, failed or froze at the bottom. A band "
        "that swallows the others is what the run was waiting in.",
        asking,
    )
    counted = {series.labels["phase"]: dict(series.samples) for series in
               asking.range("count by (phase) (tachograph_rank_phase_seconds{$run})", coarse=True)}  # fmt: skip
    gone = {series.labels["state"]: dict(series.samples) for series in asking.range(
        'count by (state) (tachograph_rank_state{$run,state=~"frozen|dead|failed"} == 1)', coarse=True)}  # fmt: skip
    layers = [(each, gone[each]) for each in STATES if each in gone]
    layers += [(each, counted[each]) for each in PHASES if each in counted]
    if not layers:
        return figure
    times = sorted(set().union(*(samples for _, samples in layers)))
    frame = Frame(asking.window, LEFT, 8, BANDS)
    floor = dict.fromkeys(times, 0.0)
    edges = []
    for each, samples in layers:
        top = {time: floor[time] + samples.get(time, 0.0) for time in times}
        edges.append((each, list(floor.items()), list(top.items())))
        floor = top
    scale = Scale.over(frame, floor.values(), zero=True)
    parts = [*scale.axis(lambda value: f"{value:,.0f}")]
    parts += [band(scale, low, high, asking.window.coarse, f"fill-{each}") for each, low, high in edges]
    figure.picture = frame.picture("Ranks in each phase over time", parts)
    figure.legend = [(each, each) for each, _ in layers]
    return figure


def alerts(asking: Asking, verdicts: Sequence[Verdict], most: int = 24) -> Figure:
    """Return what fired over time, a row for each alert."""
    figure = Figure("Alerts over time", "What fired, from when to when; the most urgent first.", asking)
    figure.nothing = "No alert fired."
    names = list(dict.fromkeys(verdict.alert for verdict in verdicts))[:most]
    if not names:
        return figure
    frame = Frame(asking.window, LEFT, 8, ROW * len(names) + 4)
    parts = [
        text(name, LEFT - 8, 10 + ROW * i + BAR - 3, text_anchor="end", class_="row") for i, name in enumerate(names)
    ]
    parts += [alert(frame, each, 10 + ROW * names.index(each.alert), BAR) for each in verdicts if each.alert in names]
    figure.picture = frame.picture(f"Alerts over time: {', '.join(names)}", parts)
    figure.legend = [(f"alert-{kind}", MEANING[kind]) for kind in dict.fromkeys(each.kind for each in verdicts)]
    return figure
