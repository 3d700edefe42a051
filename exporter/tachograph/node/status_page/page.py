"""The page at `/`: the problems of this node, its ranks and its GPUs, for a person without a dashboard.

It is made on request from what the exporter has in memory anyway, and its size is bounded whatever ranks send.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from tachograph import diagnosis
from tachograph._version import __version__
from tachograph.catalog import index as catalog
from tachograph.humanize import age, coordinates, count, percent, plural, significant, utc
from tachograph.node.clock import Clock
from tachograph.node.log import OncePerMinute
from tachograph.node.ranks.rank import Rank
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.redact import redact
from tachograph.node.samples import GpuIdentity, GpuSnapshot
from tachograph.node.status_page import html, problems
from tachograph.node.status_page.gpus import GpuStatus, of_gpus
from tachograph.node.status_page.html import ABSENT, Cell, name, note, plain, shown, state
from tachograph.node.status_page.problems import REASON_LENGTH, NodeProblem, RankStatus
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
    '<p class="soft">Waits: share of the last ten seconds that a rank spent waiting for the others. Lags: how much '
    "less that is than for the median rank here; the rank that waits least arrives last.</p>"
)
ROW_REASON_LENGTH = 96
WITHHELD = "(the message is shown on loopback or with authentication)"
FAILED = '<p class="soft">This part could not be drawn: see the log of this exporter.</p>'
REFRESH_SECONDS = 5
LOOKS = {"running": "good", "frozen": "bad", "dead": "bad", "failed": "bad", "finished": "idle"}

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


def status_page(
    *,
    node: str,
    clock: Clock,
    table: RankTable,
    gpus: Sequence[GpuIdentity],
    snapshot: GpuSnapshot | None,
    health: Mapping[str, str],
    sections: Sections | None = None,
    is_trusted: bool = True,
) -> str:
    """Return the page; every text that a rank or a driver chose is escaped.

    Only a trusted reader sees failure reasons: a message may hold paths and data of its user.
    """
    now, wall = clock.monotonic(), clock.wall()
    runs = _ranks_by_run(table, now, is_trusted=is_trusted)
    of_node = [GpuStatus(identity, snapshot) for identity in gpus[:GPUS_SHOWN]]
    states = Counter(each.state for ranks in runs.values() for each in ranks)

    @cache
    def found() -> list[NodeProblem]:
        of_all = [each for run, ranks in runs.items() for each in problems.of_ranks(run, ranks, now, wall)]
        return sorted((*of_all, *of_gpus(of_node, snapshot, now)), key=lambda problem: problem.order)

    def title() -> str:
        return f"{plural(len(found()), 'problem')} – {node}" if found() else node

    drawn = (sections or Sections(clock)).drawn
    return _template().substitute(
        title=escape(drawn("problems", title, node)),
        node=escape(node),
        version=escape(__version__),
        refresh=REFRESH_SECONDS,
        time=utc(wall),
        problems=drawn("problems", lambda: _problems(found(), states, of_node)),
        ranks_summary=", ".join(f"{states[each]} {each}" for each in catalog.STATES if states[each]),
        ranks=drawn("ranks", lambda: _runs(runs, table, now)),
        gpus_summary=drawn("gpus", lambda: _gpus_summary(gpus, snapshot, now), ""),
        gpus=drawn("gpus", lambda: _gpus(of_node, len(gpus), table, runs)),
        events=drawn("events", lambda: _events(table)),
        health="\n".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in health.items()),
    )


@cache
def _template() -> Template:
    return Template((files("tachograph.node.status_page") / "page.html").read_text(encoding="utf-8"))


def _ranks_by_run(table: RankTable, now: float, *, is_trusted: bool) -> dict[str, list[RankStatus]]:
    """Return the ranks of each run, in order."""
    found: dict[str, list[RankStatus]] = {}
    for rank in table.ranks():
        since = rank.ended if rank.ended is not None else rank.heard
        texts = (rank.why_failed(now), *rank.notices)
        reason, *notices = (redact(text) if is_trusted or not text else WITHHELD for text in texts)
        found.setdefault(rank.key[0], []).append(
            RankStatus(rank, table.state_of(rank), now - since, reason or rank.end_note, tuple(notices))
        )
    return found


def _problems(found: Sequence[NodeProblem], states: Counter[str], gpus: Sequence[GpuStatus]) -> str:
    if found:
        lines = "\n".join(
            f'<li><span class="state {problem.look}">{problem.kind}</span> {problem.html}</li>'
            for problem in found[:PROBLEMS_SHOWN]
        )
        more = len(found) - PROBLEMS_SHOWN
        rest = f'<p class="soft">And {more:,} more: see below.</p>' if more > 0 else ""
        return f'<ul class="problems">\n{lines}\n</ul>{rest}'
    seen = [f"{states['running']} of {plural(sum(states.values()), 'rank')} running"] if states else []
    readable = sum(gpu.value(catalog.GPU_UP) == 1 for gpu in gpus)
    seen += [f"{readable} of {plural(len(gpus), 'GPU')} readable"] if gpus else []
    if not seen:
        return '<p class="soft">Nothing to watch yet: no rank and no GPU.</p>'
    return f"<p>{state('good', 'None')} that this node can see: {', '.join(seen)}.</p>"


def _runs(runs: Mapping[str, Sequence[RankStatus]], table: RankTable, now: float) -> str:
    """Return a table for each run, those with failed ranks first, and of a run too large its failed ranks."""
    if not runs:
        return (
            '<p class="soft">No rank has connected on this node. Three lines in the training loop connect one: '
            "<code>recorder = tachograph.Recorder()</code>.</p>"
        )
    order = sorted(runs.items(), key=lambda item: min(map(_urgency, item[1])))
    room, tables = RANKS_SHOWN, []
    for run, ranks in order[:RUNS_SHOWN]:
        chosen = sorted(sorted(ranks, key=_urgency)[:room], key=lambda each: each.rank.hello.rank)
        room -= len(chosen)
        lag = problems.lags(each.rank for each in ranks if each.state == "running")
        world = max(each.rank.hello.world_size for each in ranks)
        here = f"{len(ranks):,} of {plural(world, 'rank')} here"
        if left := len(ranks) - len(chosen):
            here += f", {left:,} not shown"
        caption = f'Run {name(run)} <span class="soft">{here}</span>'
        rows = [_rank(each, table, lag.get(each.rank), now) for each in chosen]
        if any(each.rank.coordinates for each in chosen):
            rows = [[*row, _coordinates(each.rank)] for row, each in zip(rows, chosen, strict=True)]
        tables.append(html.table(caption, rows))
        tables.append(_own_metrics([each.rank for each in ranks]))
    if (left := len(order) - RUNS_SHOWN) > 0:
        tables.append(f'<p class="soft">{plural(left, "run")} more, not shown; /metrics has all.</p>')
    return "\n".join((*tables, WAITS_AND_LAGS))


def _urgency(status: RankStatus) -> int:
    """Return what is shown first where there is no room for all."""
    return diagnosis.STATES.index(status.state)


def _rank(status: RankStatus, table: RankTable, lag: float | None, now: float) -> list[Cell]:
    rank = status.rank
    look, classes = state(LOOKS[status.state], status.state), ""
    if rank.ended is not None:
        look += note(f"{age(status.seconds)} ago")
    elif status.state == "frozen":
        look += note(f"silent for {age(status.seconds)}")
    if status.reason:
        classes = "wide"
        look += note(plain(status.reason, ROW_REASON_LENGTH))
    loss = None if rank.outcome else rank.series.gauge(catalog.TRAIN_LOSS.key)
    seconds, phase = rank.phase_seconds(now), ABSENT
    if rank.phase is not None and seconds is not None:
        phase = f'{escape(rank.phase)} <span class="soft">for {age(seconds)}</span>'
    return [
        Cell("Rank", "n", rank.key[1]),
        Cell("State", classes, look),
        Cell("Phase", "", phase),
        Cell("Step", "n", shown(rank.step, count)),
        Cell("Loss", "n", shown(loss, significant)),
        Cell("Waits", "n", shown(rank.wait_share(), percent)),
        Cell("Lags", "n", shown(lag, percent)),
        Cell("GPU", "n", escape(table.gpu_of(rank)) or ABSENT),
    ]


def _coordinates(rank: Rank) -> Cell:
    return Cell("Coordinates", "", coordinates(rank.coordinates) if rank.coordinates else ABSENT)


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


def _gpus(gpus: Sequence[GpuStatus], known: int, table: RankTable, runs: Mapping[str, Iterable[RankStatus]]) -> str:
    living = [each.rank for ranks in runs.values() for each in ranks if each.rank.ended is None]
    rows = [gpu.row([rank for rank in living if table.gpu_of(rank) == gpu.identity.index]) for gpu in gpus]
    left = f'<p class="soft">{known - len(gpus)} more, not shown; /metrics has all.</p>' if known > len(gpus) else ""
    none = '<p class="soft">No GPU is known on this node.</p>'
    return (html.table(UNSEEN.format("GPUs of this node"), rows) or none) + left


def _gpus_summary(gpus: Sequence[GpuIdentity], snapshot: GpuSnapshot | None, now: float) -> str:
    if snapshot is None:
        return "no readings yet" if gpus else ""
    if not snapshot.ok:
        return plain(snapshot.reason, REASON_LENGTH)
    return f"read {age(now - snapshot.monotonic)} ago in {snapshot.duration * 1000:.1f} ms"


def _events(table: RankTable) -> str:
    rows = [
        [
            Cell("When (UTC)", "", utc(entry.event.time)),
            Cell("Event", "", plain(entry.event.kind.replace("_", " "))),
            Cell("Rank", "n", str(entry.rank)),
            Cell("Step", "n", shown(entry.event.step, count)),
            Cell("Run", "wide", name(entry.run)),
        ]
        for entry in sorted(table.events, key=lambda entry: -entry.event.time)[:EVENTS_SHOWN]
    ]
    return html.table(UNSEEN.format("Latest events of ranks"), rows) or '<p class="soft">None.</p>'
