"""The runs, ranks and GPUs of a node, from what its exporter concludes about them."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from tachograph.catalog.rank import ALIVE
from tachograph.diagnosis import slowdown_cause
from tachograph.top.overview import DATA_LIMIT, GpuRow, LayerRow, RankRow, RunSummary, Trouble, in_order
from tachograph.wire import decode_number

Said = Mapping[str, Any]
"""An object of `/api/node`, see docs/web.md."""


def number(value: object) -> float | None:
    """Return a number, None where it is not known."""
    return None if value is None else decode_number(value)


READ: Mapping[str, Callable[[Any], object]] = {"int": int, "str": str, "float | None": number}
"""How a field of a row is read, by its type."""


def rank(run: str, said: Said) -> RankRow:
    """Return a rank as the exporter judges it."""
    coordinates = {name: int(place) for name, place in said["coordinates"].items()}
    return RankRow(run=run, coordinates=coordinates, marks=in_order(said["marks"]), **_plain(RankRow, said))


def trouble(said: Said) -> Trouble:
    """Return a problem as the exporter says it; one of an older version says no remedy."""
    return Trouble(
        kind=str(said["kind"]),
        text=str(said["text"]),
        run=str(said["run"]),
        urgent=bool(said["urgent"]),
        seconds=number(said.get("seconds")),
        remedy=str(said.get("remedy", "")),
    )


def gpu(said: Said, ranks: Iterable[RankRow], before: Said, seconds: float) -> GpuRow:
    """Return a GPU, with the living ranks on it; `before` has what was said so long ago."""
    uuid = said["uuid"]
    holders = sorted(rank.rank for rank in ranks if uuid and rank.uuid == uuid and rank.state in ALIVE)
    then = next((each for each in before["gpus"] if (each["gpu"], each["uuid"]) == (said["gpu"], uuid)), said)
    return GpuRow(
        node="",
        ranks=tuple(holders),
        throttling=_throttling(said, then, seconds),
        trouble=tuple(map(str, said["trouble"])),
        **_plain(GpuRow, said),
    )


def _plain(kind: type[RankRow | GpuRow | LayerRow], said: Said) -> dict[str, Any]:
    """Return the texts and numbers of a row, which have the same names in `/api/node`."""
    named = ((each.name, str(each.type)) for each in fields(kind) if each.name in said)
    return {name: READ[of](said[name]) for name, of in named if of in READ}


def _throttling(said: Said, then: Said, seconds: float) -> dict[str, float]:
    """Return the share of time lost by cause: from the counters where there are any, else from the last reading."""
    shares = {what: 1.0 for reason in said["held"] if (what := slowdown_cause(reason))}
    counted: dict[str, float] = defaultdict(float)
    for reason, held in said["held_seconds"].items():
        if seconds > 0 and (what := slowdown_cause(reason)):
            counted[what] = max(counted[what], min(1.0, (held - then["held_seconds"].get(reason, held)) / seconds))
    return {what: share for what, share in (shares | counted).items() if share > 0.005}


def run(said: Said, before: Said) -> RunSummary:
    """Return the part of a run that the node sees, the figures of its own ranks; `before` has what was said earlier."""
    ranks, why = said["ranks"], str(said["sentence"])
    running = [(each, _earlier(said["run"], each, before)) for each in ranks if each["state"] == "running"]
    tokens = [speed for now, then in running if (speed := _speed(now, then, "tokens")) is not None]
    speeds = [(_speed(now, then, "flops"), now["peak_flops"]) for now, then in running]
    flops = [(speed, peak) for speed, peak in speeds if speed is not None and peak]
    losses = _numbers(ranks, "loss")
    finite = [loss for loss in losses if math.isfinite(loss)]
    return RunSummary(
        name=str(said["run"]),
        state=str(said["state"]),
        state_seconds=number(said["seconds_without_step"]) if why else None,
        why=why,
        ranks=dict(Counter(str(each["state"]) for each in ranks)),
        world_size=int(said["world_size"]),
        restarts=max(_numbers(ranks, "restarts"), default=None),
        step=max(_numbers(ranks, "step"), default=None),
        step_seconds=None if why else number(said["step_seconds"]),
        wait_seconds=None if why else number(said.get("wait_seconds")),
        data_seconds=None if why else number(said.get("data_seconds")),
        data_limit=number(said.get("data_limit")) or DATA_LIMIT,
        parts_seconds={} if why else _known(said.get("parts_seconds", {})),
        saving_seconds=number(said.get("saving_seconds")),
        tokens_per_second=None if not tokens else 0.0 if why else sum(tokens),
        mfu=None if why or not flops else sum(speed for speed, _ in flops) / sum(peak for _, peak in flops),
        loss=statistics.median(finite) if finite else None,
        nonfinite_ranks=len(losses) - len(finite),
        progress_seconds=min(_numbers(ranks, "progress_seconds"), default=None),
        checkpoint_seconds=number(said["checkpoint_seconds"]),
        checkpoint_step=number(said.get("checkpoint_step")),
        layers=tuple(LayerRow(**_plain(LayerRow, each)) for each in said.get("layers", ())),
    )


def _known(said: Said) -> dict[str, float]:
    """Return the numbers by name, without those that are none."""
    return {str(name): value for name, each in said.items() if (value := number(each)) is not None}


def _earlier(run: str, rank: Said, before: Said) -> Said | None:
    """Return what was said of a rank's process earlier."""
    ranks = (each for one in before["runs"] if one["run"] == run for each in one["ranks"])
    return next((one for one in ranks if (one["rank"], one["restarts"]) == (rank["rank"], rank["restarts"])), None)


def _speed(now: Said, then: Said | None, key: str) -> float | None:
    """Return how much of a counter a rank's usual step makes in a second: of its steps since then, else of all."""
    steps, amount = now["steps"], now[key]
    if amount is None or not steps or not now["step_seconds"]:
        return None
    if then is not None and then[key] is not None and (then["steps"] or 0.0) < steps:
        steps, amount = steps - (then["steps"] or 0.0), amount - then[key]
    return float(amount / steps / now["step_seconds"])


def _numbers(ranks: Iterable[Said], key: str) -> list[float]:
    return [value for each in ranks if (value := number(each[key])) is not None]
