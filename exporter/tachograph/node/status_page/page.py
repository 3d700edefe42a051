"""The page at `/`: the problems of this node, its ranks and its GPUs, for a person without a dashboard.

It is made on request from what the exporter has in memory anyway, and its size is bounded whatever ranks send.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from string import Template
from urllib.parse import quote

from tachograph import diagnosis
from tachograph._version import __version__
from tachograph.catalog import index as catalog
from tachograph.node.api.answer import NodeAnswer
from tachograph.node.api.problems import REASON_LENGTH, Problem
from tachograph.node.api.runs import RankAnswer, RunAnswer
from tachograph.node.clock import Clock
from tachograph.node.log import OncePerMinute
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.ranks.run import latest_events
from tachograph.node.status_page import html
from tachograph.node.status_page.gpus import gpu_row
from tachograph.node.status_page.html import ABSENT, Cell, name, note, plain, shown, state
from tachograph.text.humanize import age, coordinates, count, duration, percent, plural, significant, utc
from tachograph.wire import MAX_DESCRIPTION_BYTES, MAX_OWN_METRICS

EVENTS_SHOWN = 12
PROBLEMS_SHOWN = 12
RUNS_SHOWN = 8
RANKS_SHOWN = 64
"""Of all runs together; a node has 8 to 16 ranks."""
GPUS_SHOWN = 32
UNSEEN = '<span class="unseen">{}</span>'
"""A caption for screen readers; the heading above says the same."""
WAITS_AND_LAGS = (
    '<p class="soft">Data, waits: the shares of its latest steps that a rank waited for data and for the others. Lags: '
    "how much less it waits for them than the median rank here; the rank that waits least arrives last.</p>"
)
SENTENCE_LENGTH = 512
ROW_REASON_LENGTH = 96
FAILED = '<p class="soft">This part could not be drawn: see the log of this exporter.</p>'
REFRESH_SECONDS = 5
LOOKS = {
    "running": "good", "frozen": "bad", "dead": "bad", "failed": "bad", "finished": "idle",
    "culprit": "bad", "NaN loss": "bad", "behind": "warn", "stalled": "warn", "straggler": "warn", "late": "warn",
}  # fmt: skip
"""Of a rank's state; what one that runs is marked with takes the place of it, as in `tachograph top`."""

_log = logging.getLogger(__name__)


class Sections:
    """Draws the sections of the page: one that fails costs itself alone, and is logged at most once a minute."""

    def __init__(self, clock: Clock) -> None:
        self._lines = OncePerMinute(_log, clock.monotonic)

    def drawn(self, section: str, draw: Callable[[], str], failed: str = FAILED) -> str:
        """Return what `draw` returns, else `failed`."""
        try:
            return draw()
        except Exception as error:  # noqa: BLE001 - what one rank or driver says must not take the rest of the page
            self._lines.warning(f"a section of the status page could not be drawn: {section}", error)
            return failed


def status_page(judged: NodeAnswer, table: RankTable, health: Mapping[str, str], sections: Sections) -> str:
    """Return the page; every text that a rank or a driver chose is escaped."""

    def title() -> str:
        found = judged.problems
        return f"{plural(len(found), 'problem')} – {judged.node}" if found else judged.node

    drawn = sections.drawn
    return _template().substitute(
        title=escape(drawn("problems", title, judged.node)),
        node=escape(judged.node),
        version=escape(__version__),
        refresh=REFRESH_SECONDS,
        time=utc(judged.wall),
        problems=drawn("problems", lambda: _problems(judged)),
        ranks_summary=drawn("ranks", lambda: ", ".join(f"{n} {each}" for each, n in _states(judged).items()), ""),
        ranks=drawn("ranks", lambda: _runs(judged.runs, table)),
        gpus_summary=drawn("gpus", lambda: _gpus_summary(judged), ""),
        gpus=drawn("gpus", lambda: _gpus(judged)),
        events=drawn("events", lambda: _events(table)),
        health="\n".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in health.items()),
    )


@cache
def _template() -> Template:
    return html.template("tachograph.node.status_page", "page.html")


def _states(judged: NodeAnswer) -> dict[str, int]:
    """Return how many ranks are in each state, in the order of the states."""
    found = Counter(rank.state for run in judged.runs for rank in run.ranks)
    return {each: found[each] for each in catalog.STATES if found[each]}


def _problems(judged: NodeAnswer) -> str:
    found, states, gpus = judged.problems, _states(judged), judged.gpus
    if found:
        lines = "\n".join(map(_problem, found[:PROBLEMS_SHOWN]))
        more = len(found) - PROBLEMS_SHOWN
        rest = f'<p class="soft">And {more:,} more: see below.</p>' if more > 0 else ""
        return f'<ul class="problems">\n{lines}\n</ul>{rest}'
    seen = [f"{states.get('running', 0)} of {plural(sum(states.values()), 'rank')} running"] if states else []
    readable = sum(gpu.value(catalog.GPU_UP) == 1 for gpu in gpus)
    seen += [f"{readable} of {plural(len(gpus), 'GPU')} readable"] if gpus else []
    if not seen:
        return '<p class="soft">Nothing to watch yet: no rank and no GPU.</p>'
    return f"<p>{state('good', 'None')} that this node can see: {', '.join(seen)}.</p>"


def _problem(problem: Problem) -> str:
    who = escape(problem.who) + name(problem.run) if problem.run else ""
    text = plain(problem.text, SENTENCE_LENGTH)
    advice = re.sub("`([^`]+)`", r"<code>\1</code>", plain(problem.remedy, SENTENCE_LENGTH))
    remedy = note(f"→ {advice}") if advice else ""
    return f"<li>{state('bad' if problem.urgent else 'warn', problem.kind)} {who}{text}{remedy}</li>"


def _runs(runs: Sequence[RunAnswer], table: RankTable) -> str:
    """Return a table for each run, those with failed ranks first, and of a run too large its failed ranks."""
    if not runs:
        return (
            '<p class="soft">No rank has connected on this node. Three lines in the training loop connect one: '
            "<code>recorder = tachograph.Recorder()</code>.</p>"
        )
    order = sorted(runs, key=lambda run: min(map(_urgency, run.ranks)))
    room, tables = RANKS_SHOWN, []
    for run in order[:RUNS_SHOWN]:
        chosen = sorted(sorted(run.ranks, key=_urgency)[:room], key=lambda rank: rank.rank)
        room -= len(chosen)
        here = f"{len(run.ranks):,} of {plural(run.world_size, 'rank')} here"
        if left := len(run.ranks) - len(chosen):
            here += f", {left:,} not shown"
        if run.step_seconds is not None and run.seconds_without_step is not None and not run.sentence:
            here += f", {duration(run.step_seconds)} a step"
        caption = f'Run {name(run.run)} <span class="soft">{here}</span>{_box_link(run)}'
        rows = [_rank(rank) for rank in chosen]
        if any(rank.coordinates for rank in chosen):
            placed = [coordinates(rank.coordinates) if rank.coordinates else ABSENT for rank in chosen]
            rows = [[*row, Cell("Coordinates", "", where)] for row, where in zip(rows, placed, strict=True)]
        tables.append(html.table(caption, rows))
        tables.append(_own_metrics([rank for rank in table.ranks() if rank.key[0] == run.run]))
    if (left := len(order) - RUNS_SHOWN) > 0:
        tables.append(f'<p class="soft">{plural(left, "run")} more, not shown; /metrics has all.</p>')
    return "\n".join((*tables, WAITS_AND_LAGS))


def _box_link(run: RunAnswer) -> str:
    """Return a link to what the ranks of a run without a step left behind."""
    path = quote(run.run, safe="")
    return f' <a href="/blackbox/{path}">Black box</a>' if run.sentence else ""


def _urgency(rank: RankAnswer) -> int:
    """Return what is shown first where there is no room for all."""
    return diagnosis.STATES.index(rank.state)


def _rank(rank: RankAnswer) -> list[Cell]:
    word = rank.marks[0] if rank.marks and rank.state == "running" else rank.state
    look, classes = state(LOOKS[word], word), ""
    if rank.cause:
        look += note(plain(rank.cause))
    if rank.ended_seconds is not None:
        look += note(f"{age(rank.ended_seconds)} ago")
    elif rank.state == "frozen":
        look += note(f"silent for {age(rank.silent_seconds)}")
    if rank.message:
        classes = "wide"
        look += note(plain(rank.message, ROW_REASON_LENGTH))
    if rank.where or rank.process:
        classes = "wide"
        place = f" at {rank.where}" if rank.where else f", {rank.process}"
        look += note(plain(f"pid {rank.pid}{place}", ROW_REASON_LENGTH))
    elif rank.pid:
        look += note(plain(f"pid {rank.pid}"))
    phase = ABSENT
    if rank.phase_seconds is not None:
        phase = f'{escape(rank.phase)} <span class="soft whole">for {age(rank.phase_seconds)}</span>'
    late = None if rank.lag_ratio is None else max(0.0, rank.lag_ratio)
    return [
        Cell("Rank", "n", str(rank.rank)),
        Cell("State", classes, look),
        Cell("Phase", "", phase),
        Cell("Step", "n", shown(rank.step, count)),
        Cell("Loss", "n", shown(rank.loss, significant)),
        Cell("Data", "n", shown(_share(rank.data_seconds, rank.step_seconds), percent)),
        Cell("Waits", "n", shown(rank.wait_ratio, percent)),
        Cell("Lags", "n", shown(late, percent)),
        Cell("GPU", "n", escape(rank.gpu) or ABSENT),
    ]


def _share(part: float | None, whole: float | None) -> float | None:
    return min(part / whole, 1.0) if part is not None and whole else None


def _own_metrics(ranks: Sequence[Rank]) -> str:
    """Return the metrics that a run declared itself, over its ranks here; nothing without any."""
    described = {metric: text for rank in ranks for metric, text in rank.own_metrics.items()}
    values: dict[str, list[float]] = {metric: [] for metric in sorted(described)[:MAX_OWN_METRICS]}
    for rank in ranks:
        for metric, value in rank.series.gauges.get(catalog.TRAIN_CUSTOM.key, {}).items():
            if metric in values and not rank.outcome:
                values[metric].append(value)
    rows = [
        [
            Cell("Metric", "", plain(metric)),
            Cell("Lowest", "n", shown(_extreme(min, found), significant)),
            Cell("Highest", "n", shown(_extreme(max, found), significant)),
            Cell("Meaning", "wide", plain(described[metric], MAX_DESCRIPTION_BYTES)),
        ]
        for metric, found in values.items()
    ]
    return html.table('<span class="soft">Its own metrics</span>', rows)


def _extreme(choose: Callable[[list[float]], float], found: list[float]) -> float | None:
    """Return the lowest or the highest; NaN if any is, None without any."""
    if not found:
        return None
    return math.nan if any(map(math.isnan, found)) else choose(found)


def _gpus(judged: NodeAnswer) -> str:
    gpus, known = judged.gpus[:GPUS_SHOWN], len(judged.gpus)
    living = [(run.run, rank) for run in judged.runs for rank in run.ranks if rank.ended_seconds is None]
    rows = [gpu_row(gpu, [each for each in living if each[1].gpu == gpu.identity.index]) for gpu in gpus]
    left = f'<p class="soft">{known - len(gpus)} more, not shown; /metrics has all.</p>' if known > len(gpus) else ""
    none = '<p class="soft">No GPU is known on this node.</p>'
    return (html.table(UNSEEN.format("GPUs of this node"), rows) or none) + left


def _gpus_summary(judged: NodeAnswer) -> str:
    snapshot = judged.snapshot
    if snapshot is None:
        return "no readings yet" if judged.gpus else ""
    if not snapshot.ok:
        return plain(snapshot.reason, REASON_LENGTH)
    return f"read {age(judged.now - snapshot.monotonic)} ago in {snapshot.duration * 1000:.1f} ms"


def _events(table: RankTable) -> str:
    rows = [
        [
            Cell("When (UTC)", "", utc(entry.event.time)),
            Cell("Event", "", plain(entry.event.kind.replace("_", " "))),
            Cell("Rank", "n", str(entry.rank)),
            Cell("Step", "n", shown(entry.event.step, count)),
            Cell("Run", "wide", name(entry.run)),
        ]
        for entry in latest_events((run for _, run in table.runs()), EVENTS_SHOWN)
    ]
    return html.table(UNSEEN.format("Latest events of ranks"), rows) or '<p class="soft">None.</p>'
