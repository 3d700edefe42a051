"""Supervise the incidents, random ones and healthy days in virtual time, and report how right shadow mode would be.

`tachograph-lab supervised --count 100 --healthy 3 --jobs 2` exits with status 0 if the precision of what
`tachograph supervise` would have done is at least 0.98, and nothing would have been done where no alert is expected.
A scenario of which only alerts tell goes on for 35 minutes after its end, as the policy waits.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from itertools import count, islice

from tachograph.findings.kinds import kind_of
from tachograph.supervise.triggers import OF_ALERTS
from tachograph.text.humanize import duration, span
from tachograph_lab import binaries
from tachograph_lab.commands.healthy import day
from tachograph_lab.commands.parser import LabParser, at_least_one
from tachograph_lab.replay.batch import workers
from tachograph_lab.replay.supervised import SupervisedOutcome, precision, report, supervise_all
from tachograph_lab.replay.virtual import packs
from tachograph_lab.scenario import Scenario, load, random_scenario
from tachograph_lab.scenario.definition import INCIDENTS

LEAST_PRECISION = 0.98
LINGERS_SECONDS = 2100.0
"""For so long a scenario goes on of which only alerts tell: a node must be slow for half an hour."""
INTERVAL_SECONDS = 15.0
"""Between two scrapes and two evaluations of the rules: what the supervisor takes from alerts must hold for minutes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise them; return the exit status."""
    options = _parse(arguments)
    binaries.find(options.suite)
    parts = packs(drawn(options))
    began = time.monotonic()
    outcomes: list[SupervisedOutcome] = []
    with workers(options.jobs) as pool:
        for future in as_completed([pool.submit(supervise_all, pack, options.suite) for pack in parts]):
            for outcome in future.result():
                outcomes.append(outcome)
                said = ", ".join(f"{one.trigger} {one.verdict}" for one in outcome.judged) or "nothing"
                print(f"{outcome.scenario.title} ({duration(outcome.scenario.lasts)}): {said}", flush=True)
    print(f"\nIn {span(time.monotonic() - began)}:", *report(outcomes), sep="\n")
    healthy = [outcome for outcome in outcomes if not outcome.scenario.expect]
    if precision(outcomes) < LEAST_PRECISION or any(outcome.judged for outcome in healthy):
        what = f"the precision is below {LEAST_PRECISION}, or something would have been done on a healthy day"
        print(f"tachograph-lab supervised: {what}", file=sys.stderr)
        return 1
    return 0


def drawn(options: argparse.Namespace) -> Iterator[Scenario]:
    """Yield the scenarios that are asked for, of one run each."""
    stories = [load(path) for path in sorted(INCIDENTS.glob("*.yaml"))] if options.stories else []
    healthy = (day(ranks, seed, options.hours * 3600) for seed in range(options.healthy) for ranks in (2, 8))
    small = (random_scenario.generate(number, options.seed) for number in count())
    random = (one for one in small if one.ranks <= options.ranks and not one.runs)
    for scenario in (*stories, *healthy, *islice(random, options.count)):
        if scenario.lasts <= options.longest and not scenario.runs and scenario.ranks <= options.ranks:
            yield _lingering(scenario)


def _lingering(scenario: Scenario) -> Scenario:
    """Return a scenario that goes on for long enough where only alerts tell of it."""
    is_of_alerts = any(kind_of(one.alert).trigger in OF_ALERTS for one in (*scenario.expect, *scenario.may))
    lasts = scenario.lasts + LINGERS_SECONDS * is_of_alerts
    return replace(scenario, lasts=lasts, scrape=INTERVAL_SECONDS, evaluation=INTERVAL_SECONDS)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = LabParser("supervised", __doc__.splitlines()[0])
    parser.add_argument("--no-stories", dest="stories", action="store_false", help="leave out the shipped incidents")
    parser.add_argument("--count", type=int, default=0, metavar="N", help="number of random incidents (0)")
    parser.add_argument("--healthy", type=int, default=0, metavar="N", help="healthy days of 2 and of 8 ranks each (0)")
    parser.add_argument("--hours", type=float, default=3.0, metavar="N", help="length of those, time-lapsed (3)")
    parser.add_argument("--ranks", type=at_least_one, default=32, metavar="N", help="size of the largest fleet (32)")
    parser.add_argument("--longest", type=float, default=1e9, metavar="N", help="seconds of the longest (no limit)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random incidents (1)")
    parser.add_jobs()
    return parser.parse_args(arguments)
