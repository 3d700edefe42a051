"""Replay healthy days of 2, 8 and 64 ranks, five seeds each, in virtual time: they must cause no notification.

`tachograph-lab healthy --jobs 2` exits with status 0 if nothing was sent. A day of 64 ranks takes half an hour of a
core and 10 GB; the same memory is enough for two hours of 1,024 ranks (`--ranks 1024 --hours 2`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from random import Random

from tachograph.text.humanize import duration, span
from tachograph_lab import binaries
from tachograph_lab.commands.parser import LabParser
from tachograph_lab.replay.batch import replay_all
from tachograph_lab.scenario import Fleet, Learning, Loss, Pause, Scenario, Work
from tachograph_lab.scenario.faults import BatchChange, Finish, PlannedRestart, Rollout, ScrapeFailure
from tachograph_lab.scenario.random_scenario import step_times
from tachograph_lab.scenario.values import some_time

DAY = 86400.0
FLEETS = {2: (1, 2), 8: (1, 8), 64: (8, 8), 1024: (128, 8)}
"""Nodes and GPUs per node, by the number of ranks."""

USUAL = [2, 8, 64]
"""The fleets whose day fits into an ordinary machine's memory."""


def day(
    ranks: int, seed: int, lasts: float = DAY, *, step_seconds: float = 1.0, loop: str = "marked", rollout: bool = False
) -> Scenario:
    """Return a healthy day, with its events at times that depend on the seed, scaled to `lasts`.

    ± 3 % noise, a checkpoint of 60 s every 30 minutes, an evaluation of 3 minutes every two hours, one planned restart,
    one change of the batch size, one failed scrape per hour, a normal end; with `rollout` all exporters are replaced.
    """
    dice = Random(f"healthy/{ranks}/{seed}")
    nodes, gpus = FLEETS[ranks]
    fleet = Fleet(run="healthy", nodes=nodes, gpus_per_node=gpus)
    step = step_times(step_seconds, 0.03)
    return Scenario(
        title=f"A healthy day of {ranks} ranks, seed {seed}",
        story="Noise, checkpoints, evaluations, a planned restart, a batch change, failed scrapes, a normal end.",
        seed=seed,
        lasts=lasts,
        fleet=fleet,
        loop=loop,
        step=step,
        work=Work(tokens=8192.0 * ranks * step.seconds),
        learning=Learning(loss=Loss(halves=20000.0)),
        checkpoint=Pause(every=1800.0, takes=60.0),
        eval=Pause(every=7200.0, takes=180.0),
        faults=(
            ScrapeFailure(at=dice.uniform(0, 3600), node=dice.randrange(nodes), every=3600.0),
            PlannedRestart(at=lasts * dice.uniform(0.2, 0.45), takes=dice.uniform(120, 400)),
            BatchChange(at=lasts * dice.uniform(0.5, 0.8), factor=dice.choice((0.5, 1.5, 2.0))),
            Finish(at=lasts - 600),
            *([Rollout(at=lasts * 0.1, nodes=tuple(range(nodes)), each=40.0, between=45.0)] if rollout else []),
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay healthy days; return the exit status."""
    options = _parse(arguments)
    days = [
        day(
            ranks, seed, options.hours * 3600,
            step_seconds=options.step, loop=options.loop, rollout=options.rollout,
        ).at_intervals(*each)
        for ranks in options.ranks
        for seed in options.seeds
        for each in options.at
    ]  # fmt: skip
    return _replay(days, options)


def _replay(days: Iterable[Scenario], options: argparse.Namespace) -> int:
    began = time.monotonic()
    loud = count = 0
    try:
        for scenario, verdict, seconds in replay_all(list(days), options.jobs, options.suite):
            count += 1
            loud += not verdict.ok
            print(f"{'ok  ' if verdict.ok else 'FAIL'} {scenario.title} ({duration(seconds)})", flush=True)
            for line in () if verdict.ok else verdict.lines[1:]:
                print(f"      {line}", flush=True)
    except binaries.BinariesUnavailable as error:
        print(f"tachograph-lab healthy: {error}", file=sys.stderr)
        return 2
    print(f"\n{count - loud} of {count} healthy days caused no notification, in {span(time.monotonic() - began)}")
    return int(loud > 0)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = LabParser("healthy", __doc__.splitlines()[0])
    parser.add_argument(
        "--ranks", type=int, nargs="+", choices=FLEETS, default=USUAL, help="sizes of the fleets (2 8 64)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], metavar="N", help="seeds (1 2 3 4 5)")
    parser.add_argument("--hours", type=float, default=DAY / 3600, metavar="N", help="length of a day (24)")
    parser.add_argument("--step", type=_seconds, default=1.0, metavar="TIME", help="length of a step (1s)")
    parser.add_argument("--loop", choices=("marked", "basic"), default="marked", help="what the loop marks (marked)")
    parser.add_argument("--rollout", action="store_true", help="all exporters are replaced, one after the other")
    parser.add_intervals()
    parser.add_jobs()
    options = parser.parse_args(arguments)
    options.at = parser.intervals(options)
    return options


def _seconds(text: str) -> float:
    try:
        return some_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {error}") from error
