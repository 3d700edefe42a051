"""The page at `/`: what is wrong on this node, and what its ranks and GPUs do, for a person without a dashboard.

It is made when somebody looks, of what the exporter has in memory anyway, and its size is bounded whatever ranks say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from tachograph._version import __version__
from tachograph.catalog import index as catalog
from tachograph.node.clock import Clock
from tachograph.node.ranks.table import RankTable
from tachograph.node.redact import redact
from tachograph.node.samples import GpuIdentity, GpuSnapshot
from tachograph.node.status_page import html, problems
from tachograph.node.status_page.gpus import Gpu, of_gpus
from tachograph.node.status_page.html import ABSENT, Cell, ago, counted, name, plain, shown, stamp, state, why
from tachograph.node.status_page.parts import Parts
from tachograph.node.status_page.problems import LAST_WORDS_LENGTH, Seat, Trouble

EVENTS_SHOWN = 12
TROUBLES_SHOWN = 12
RUNS_SHOWN = 8
RANKS_SHOWN = 64
"""Of all runs together; a node has 8 to 16 ranks."""
GPUS_SHOWN = 32
UNSEEN = '<span class="unseen">{}</span>'
"""A caption for those who hear the page; the heading above says the same."""
WAITS_AND_LAGS = (
    '<p class="soft">Waits: share of the last ten seconds in which a rank could only wait for the others. Lags: how '
    "much less that is than the median here; who waits least arrives last.</p>"
)
ROW_WORDS_LENGTH = 96
WITHHELD = "(the message is shown on loopback or with authentication)"
REFRESH_SECONDS = 5
LOOKS = {"running": "good", "frozen": "bad", "dead": "bad", "failed": "bad", "finished": "idle"}


def landing_page(
    *,
    node: str,
    clock: Clock,
    table: RankTable,
    gpus: Sequence[GpuIdentity],
    snapshot: GpuSnapshot | None,
    health: Mapping[str, str],
    parts: Parts | None = None,
    is_trusted: bool = True,
) -> str:
    """Return the page; every text that a rank or a driver chose is escaped, a part that fails costs itself alone.

    Only who is trusted reads what ranks said last: a message may hold paths and data of its user.
    """
    now, wall = clock.monotonic(), clock.wall()
    seats = _seats(table, now, is_trusted=is_trusted)
    of_node = [Gpu(identity, snapshot) for identity in gpus[:GPUS_SHOWN]]
    states = Counter(seat.state for each in seats.values() for seat in each)

    @cache
    def troubles() -> list[Trouble]:
        of_all = [each for run, ranks in seats.items() for each in problems.of_ranks(run, ranks, now, wall)]
        return sorted((*of_all, *of_gpus(of_node, snapshot, now)), key=lambda trouble: trouble.weight)

    def title() -> str:
        return f"{counted(len(troubles()), 'problem')} – {node}" if troubles() else node

    drawn = (parts or Parts(clock)).drawn
    return _template().substitute(
        title=escape(drawn("verdict", title, node)),
        node=escape(node),
        version=escape(__version__),
        refresh=REFRESH_SECONDS,
        time=stamp(wall),
        verdict=drawn("verdict", lambda: _verdict(troubles(), states, of_node)),
        ranks_summary=", ".join(f"{states[each]} {each}" for each in catalog.STATES if states[each]),
        ranks=drawn("ranks", lambda: _runs(seats, table, now)),
        gpus_summary=drawn("gpus", lambda: _gpus_summary(gpus, snapshot, now), ""),
        gpus=drawn("gpus", lambda: _gpus(of_node, len(gpus), table, seats)),
        events=drawn("events", lambda: _events(table)),
        health="\n".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in health.items()),
    )


@cache
def _template() -> Template:
    return Template((files("tachograph.node.status_page") / "landing.html").read_text(encoding="utf-8"))


def _seats(ranks: RankTable, now: float, *, is_trusted: bool) -> dict[str, list[Seat]]:
    """Return the ranks of each run, in order, with their state and since when."""
    seats: dict[str, list[Seat]] = {}
    for rank in ranks.ranks():
        since = rank.ended if rank.ended is not None else rank.heard
        words = redact(rank.last_words) if is_trusted or not rank.last_words else WITHHELD
        seats.setdefault(rank.key[0], []).append(Seat(rank, ranks.state_of(rank), now - since, words))
    return seats


def _verdict(troubles: Sequence[Trouble], states: Counter[str], gpus: Sequence[Gpu]) -> str:
    if troubles:
        lines = "\n".join(
            f'<li><span class="state {trouble.look}">{trouble.kind}</span> {trouble.html}</li>'
            for trouble in troubles[:TROUBLES_SHOWN]
        )
        more = len(troubles) - TROUBLES_SHOWN
        rest = f'<p class="soft">And {more:,} more: see below.</p>' if more > 0 else ""
        return f'<ul class="troubles">\n{lines}\n</ul>{rest}'
    seen = [f"{states['running']} of {counted(sum(states.values()), 'rank')} running"] if states else []
    readable = sum(gpu.value(catalog.GPU_UP) == 1 for gpu in gpus)
    seen += [f"{readable} of {counted(len(gpus), 'GPU')} readable"] if gpus else []
    if not seen:
        return '<p class="soft">Nothing to watch yet: no rank and no GPU.</p>'
    return f"<p>{state('good', 'Nothing')} that this node can see: {', '.join(seen)}.</p>"


def _runs(seats: Mapping[str, Sequence[Seat]], ranks: RankTable, now: float) -> str:
    """Return a table for each run, those with ranks in trouble first, and of those the ranks in trouble."""
    if not seats:
        return (
            '<p class="soft">No rank has said hello on this node. Three lines in the training loop do: '
            "<code>recorder = tachograph.Recorder()</code>.</p>"
        )
    order = sorted(seats.items(), key=lambda item: min(map(_urgency, item[1])))
    room, tables = RANKS_SHOWN, []
    for run, all_of_run in order[:RUNS_SHOWN]:
        chosen = sorted(sorted(all_of_run, key=_urgency)[:room], key=lambda seat: seat.rank.hello.rank)
        room -= len(chosen)
        lag = problems.lags(seat.rank for seat in all_of_run if seat.state == "running")
        world = max(seat.rank.hello.world_size for seat in all_of_run)
        here = f"{len(all_of_run):,} of {counted(world, 'rank')} here"
        if left := len(all_of_run) - len(chosen):
            here += f", {left:,} not shown"
        caption = f'Run {name(run)} <span class="soft">{here}</span>'
        tables.append(html.table(caption, [_rank(seat, ranks, lag.get(seat.rank), now) for seat in chosen]))
    if (left := len(order) - RUNS_SHOWN) > 0:
        tables.append(f'<p class="soft">{counted(left, "run")} more, not shown; /metrics has all.</p>')
    return "\n".join((*tables, WAITS_AND_LAGS))


def _urgency(seat: Seat) -> int:
    """Return what is shown first where there is no room for all."""
    return ("failed", "dead", "frozen", "running", "finished").index(seat.state)


def _rank(seat: Seat, ranks: RankTable, lag: float | None, now: float) -> list[Cell]:
    rank = seat.rank
    look, classes = state(LOOKS[seat.state], seat.state), ""
    if rank.ended is not None:
        look += why(f"{ago(seat.seconds)} ago")
    elif seat.state == "frozen":
        look += why(f"silent for {ago(seat.seconds)}")
    if seat.last_words:
        classes = "wide"
        look += why(plain(seat.last_words, ROW_WORDS_LENGTH))
    loss = None if rank.outcome else rank.series.gauge(catalog.TRAIN_LOSS.key)
    seconds, phase = rank.phase_seconds(now), ABSENT
    if rank.phase is not None and seconds is not None:
        phase = f'{escape(rank.phase)} <span class="soft">for {ago(seconds)}</span>'
    return [
        Cell("Rank", "n", rank.key[1]),
        Cell("State", classes, look),
        Cell("Phase", "", phase),
        Cell("Step", "n", shown(rank.step, lambda step: f"{step:,.0f}")),
        Cell("Loss", "n", shown(loss, lambda loss: f"{loss:#.4g}")),
        Cell("Waits", "n", shown(rank.wait_share(), lambda share: f"{share:.0%}")),
        Cell("Lags", "n", shown(lag, lambda lag: f"{lag:.0%}")),
        Cell("GPU", "n", escape(ranks.gpu_of(rank)) or ABSENT),
    ]


def _gpus(gpus: Sequence[Gpu], known: int, ranks: RankTable, seats: Mapping[str, Iterable[Seat]]) -> str:
    living = [seat.rank for each in seats.values() for seat in each if seat.rank.ended is None]
    rows = [gpu.row([rank for rank in living if ranks.gpu_of(rank) == gpu.identity.index]) for gpu in gpus]
    left = f'<p class="soft">{known - len(gpus)} more, not shown; /metrics has all.</p>' if known > len(gpus) else ""
    return (
        html.table(UNSEEN.format("GPUs of this node"), rows) or '<p class="soft">No GPU is known on this node.</p>'
    ) + left


def _gpus_summary(gpus: Sequence[GpuIdentity], snapshot: GpuSnapshot | None, now: float) -> str:
    if snapshot is None:
        return "no readings yet" if gpus else ""
    if not snapshot.ok:
        return plain(snapshot.reason, LAST_WORDS_LENGTH)
    return f"read {ago(now - snapshot.monotonic)} ago in {snapshot.duration * 1000:.1f} ms"


def _events(ranks: RankTable) -> str:
    rows = [
        [
            Cell("When (UTC)", "", stamp(moment.event.time)),
            Cell("What", "", plain(moment.event.kind.replace("_", " "))),
            Cell("Rank", "n", str(moment.rank)),
            Cell("Step", "n", shown(moment.event.step, lambda step: f"{step:,.0f}")),
            Cell("Run", "wide", name(moment.run)),
        ]
        for moment in sorted(ranks.events, key=lambda moment: -moment.event.time)[:EVENTS_SHOWN]
    ]
    return html.table(UNSEEN.format("Latest events of ranks"), rows) or '<p class="soft">None.</p>'
