"""The page at `/`: what this node's ranks and GPUs do now, for a person without a dashboard at hand."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from tachograph import catalog
from tachograph._version import __version__
from tachograph.catalog import Metric
from tachograph.node.clock import Clock
from tachograph.node.exposition import number
from tachograph.node.rank import Rank
from tachograph.node.ranks import RankTable
from tachograph.node.readings import GpuIdentity, GpuSnapshot, Sample

ABSENT = '<span class="soft" title="no reading">–</span>'
EVENTS_SHOWN = 12
_LOOK = {"running": "good", "frozen": "bad", "dead": "bad", "failed": "bad", "finished": "idle"}

Cell = tuple[str, str, str]
"""A table cell: its column, its CSS classes, its HTML."""


def landing_page(
    *,
    node: str,
    clock: Clock,
    table: RankTable,
    gpus: Sequence[GpuIdentity],
    snapshot: GpuSnapshot | None,
    health: Mapping[str, str],
) -> str:
    """Return the page; every text that a rank or a driver chose is escaped."""
    now = clock.monotonic()
    ranks = list(table.ranks())
    living = [rank for rank in ranks if rank.ended is None]
    states = Counter(table.state_of(rank) for rank in ranks)
    summary = ", ".join(
        f'<span class="{_LOOK[state]}">{states[state]} {state}</span>' for state in catalog.STATES if states[state]
    )
    return _template().substitute(
        title=escape(node),
        version=escape(__version__),
        time=_stamp(clock.wall()),
        ranks_summary=summary,
        ranks=_table([_rank(rank, table, now) for rank in ranks])
        or '<p class="soft">No rank has said hello on this node. Three lines in the training loop do: '
        "<code>recorder = tachograph.Recorder()</code>.</p>",
        gpus_summary=_gpus_summary(gpus, snapshot, now),
        gpus=_table(_gpu(gpu, snapshot, [rank for rank in living if table.gpu_of(rank) == gpu.index]) for gpu in gpus)
        or '<p class="soft">No GPU is known on this node.</p>',
        events=_events(table),
        health="\n".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in health.items()),
    )


@cache
def _template() -> Template:
    return Template((files("tachograph.node") / "landing.html").read_text(encoding="utf-8"))


def _rank(rank: Rank, table: RankTable, now: float) -> list[Cell]:
    state = table.state_of(rank)
    look = f'<span class="state {_LOOK[state]}">{state}</span>'
    if rank.ended is not None:
        look += f'<span class="why">{_ago(now - rank.ended)} ago</span>'
    elif state == "frozen":
        look += f'<span class="why">silent for {_ago(now - rank.heard)}</span>'
    if rank.last_words:
        look += f'<span class="why">{escape(rank.last_words)}</span>'
    loss = None if rank.outcome else rank.series.gauge(catalog.TRAIN_LOSS.key)
    seconds, phase = rank.phase_seconds(now), ABSENT
    if rank.phase is not None and seconds is not None:
        phase = f'{escape(rank.phase)} <span class="soft">for {_ago(seconds)}</span>'
    return [
        ("Run", "wide", escape(rank.key[0])),
        ("Rank", "n", rank.key[1]),
        ("GPU", "n", escape(table.gpu_of(rank)) or ABSENT),
        ("State", "", look),
        ("Step", "n", _text(rank.step, lambda step: f"{step:,.0f}")),
        ("Phase", "", phase),
        ("Loss", "n", _text(loss, lambda loss: f"{loss:#.4g}")),
        ("Waiting", "n", _text(rank.wait_share(), lambda share: f"{share:.0%}")),
    ]


def _gpu(gpu: GpuIdentity, snapshot: GpuSnapshot | None, ranks: Sequence[Rank]) -> list[Cell]:
    samples = snapshot.samples if snapshot is not None else ()
    own = [sample for sample in samples if sample.labels[:2] == (gpu.index, gpu.uuid)]
    values = {(sample.metric.name, *sample.labels[2:]): sample.value for sample in own}

    def value(metric: Metric, *own: str) -> float | None:
        return values.get((metric.name, *own))

    up = value(catalog.GPU_UP)
    utilization = value(catalog.GPU_UTILIZATION)
    used, total = value(catalog.GPU_MEMORY_USED), value(catalog.GPU_MEMORY_TOTAL)
    power, limit = value(catalog.GPU_POWER), value(catalog.GPU_POWER_LIMIT)
    held = [reason for reason in catalog.CLOCK_EVENT_REASONS if value(catalog.GPU_CLOCK_EVENT, reason)]
    state = '<span class="state good">readable</span>' if up else '<span class="state bad">cannot be read</span>'
    for why in (sample.labels[2] for sample in own if sample.metric is catalog.GPU_UNAVAILABLE):
        state += f'<span class="why">{escape(why.replace("_", " "))}</span>'
    if held:
        state += f'<span class="why">clocks held: {escape(", ".join(held).replace("_", " "))}</span>'
    for trouble in _troubles(own):
        state += f'<span class="why"><span class="bad">{escape(trouble)}</span></span>'
    return [
        ("GPU", "n", escape(gpu.index)),
        ("Name", "wide", escape(gpu.name) + f'<span class="why">{escape(gpu.uuid)}</span>'),
        ("State", "", state),
        ("Rank", "", "<br>".join(f"{escape(run)} {rank}" for run, rank in (each.key for each in ranks)) or ABSENT),
        ("Utilization", "n", _text(utilization, lambda share: f"{share:.0%}{_bar(share)}")),
        (
            "Memory",
            "n",
            _text(used, lambda used: f"{_gib(used)}{_of(total, _gib)}{_bar(used / total if total else 0)}"),
        ),
        ("Temperature", "n", _text(value(catalog.GPU_TEMPERATURE, "gpu"), lambda degrees: f"{degrees:.0f} °C")),
        ("Power", "n", _text(power, lambda watts: f"{watts:.0f} W{_of(limit, lambda most: f'{most:.0f} W')}")),
    ]


def _troubles(own: Iterable[Sample]) -> Iterator[str]:
    """Yield what is wrong with a GPU, readable or not: what the driver asks for, and Xids that no program explains."""
    for sample in own:
        if sample.metric is catalog.GPU_RECOVERY_ACTION and sample.labels[2] != "none":
            yield f"driver asks for: {sample.labels[2].replace('_', ' ')}"
        elif sample.metric is catalog.GPU_XID_INFO and sample.labels[3] not in {"application", "ignore"}:
            xid, action, _ = sample.labels[2:]
            yield f"had Xid {xid}: {action}"


def _gpus_summary(gpus: Sequence[GpuIdentity], snapshot: GpuSnapshot | None, now: float) -> str:
    if snapshot is None:
        return "no readings yet" if gpus else ""
    if not snapshot.ok:
        return escape(snapshot.reason)
    return f"read {_ago(now - snapshot.monotonic)} ago in {snapshot.duration * 1000:.1f} ms"


def _events(table: RankTable) -> str:
    rows: list[list[Cell]] = [
        [
            ("When (UTC)", "", _stamp(moment.event.time)),
            ("Run", "", escape(moment.run)),
            ("Rank", "n", str(moment.rank)),
            ("What", "", escape(moment.event.kind.replace("_", " "))),
            ("Step", "n", _text(moment.event.step, lambda step: f"{step:,.0f}")),
        ]
        for moment in sorted(table.moments, key=lambda moment: -moment.event.time)[:EVENTS_SHOWN]
    ]
    return _table(rows) or '<p class="soft">None.</p>'


def _table(rows: Iterable[list[Cell]]) -> str:
    rows = list(rows)
    if not rows:
        return ""
    head = "".join(f'<th scope="col" class="{classes}">{name}</th>' for name, classes, _ in rows[0])
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{classes}" data-name="{name}">{html}</td>' for name, classes, html in row)
        + "</tr>\n"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _text(value: float | None, form: Callable[[float], str]) -> str:
    if value is None:
        return ABSENT
    return form(value) if math.isfinite(value) else f'<strong class="bad">{number(value)}</strong>'


def _bar(share: float) -> str:
    return f'<span class="bar" aria-hidden="true"><i style="width:{min(max(share, 0), 1):.0%}"></i></span>'


def _of(whole: float | None, form: Callable[[float], str]) -> str:
    return "" if whole is None else f' <span class="soft">of {form(whole)}</span>'


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _stamp(wall: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(wall))
