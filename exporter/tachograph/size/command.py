"""`tachograph size --nodes 128`: what Prometheus and the nodes need for a fleet, before it is installed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

from tachograph.catalog.metric import DASHBOARDS, SERIES_LEVELS
from tachograph.command_line import CommandParser, versioned_json
from tachograph.size.estimate import (
    BYTES_PER_POINT,
    LOGGED_METRICS,
    LOGGED_STEPS_PER_SECOND,
    LOGGING_RANKS,
    FleetCost,
    PlannedFleet,
    as_json,
    estimate,
    measured,
)
from tachograph.text import duration, humanize
from tachograph.text.wrapping import fitted

STATUSES = {0: "printed", 2: "wrong arguments"}
MOST_NODES, MOST_GPUS = 100_000, 256


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph size",
        description="Say what Prometheus and the nodes need for a fleet: series, disk, memory, processors.",
        epilog="Scaled from measurements; give a machine twice the memory and processors, for queries and restarts.",
        statuses=STATUSES,
    )
    parser.add_argument("--nodes", type=_whole(MOST_NODES), required=True, metavar="N", help="how many nodes")
    parser.add_argument(
        "--gpus", type=_whole(MOST_GPUS), default=8, metavar="N", help="GPUs per node (default: %(default)s)"
    )
    parser.add_argument(
        "--scrape", type=_interval, default=5, metavar="TIME", help="scrape interval, 5s to 30s (default: 5s)"
    )
    parser.add_argument(
        "--rank-series", choices=SERIES_LEVELS, default=DASHBOARDS, help="as the exporter's --rank.series"
    )
    parser.add_argument("--json", action="store_true", help="print an object")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 2 for wrong arguments."""
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    fleet = PlannedFleet(given.nodes, given.gpus, given.scrape, given.rank_series)
    found = estimate(fleet, measured())
    print(versioned_json(as_json(found)) if given.json else fitted(*_lines(fleet, found), hang=0))
    return 0


def _lines(fleet: PlannedFleet, found: FleetCost) -> Iterator[str]:
    each = " each" if fleet.nodes > 1 else ""
    yield (
        f"{humanize.plural(fleet.nodes, 'node')} with {humanize.plural(fleet.gpus, 'GPU')}{each}, a rank on every GPU: "
        f"{humanize.plural(fleet.ranks, 'rank')}, scraped every {fleet.scrape_seconds} s"
    )
    yield ""
    yield "Prometheus" if found.servers == 1 else "All Prometheus servers together"
    yield f"  series             {humanize.short(found.series)}"
    yield f"  samples a second   {humanize.short(found.samples_per_second)}"
    yield f"  disk a day         {humanize.byte_size(1e9 * found.disk_gigabytes_per_day)}"
    yield f"  memory             {humanize.byte_size(1e9 * found.gigabytes)}"
    yield f"  processors         {max(found.cores, 0.01):.2f} cores"
    yield "Exporter, on every node"
    yield f"  processors         {found.exporter_cores:.1%} of a core"
    yield f"  memory             {found.exporter_megabytes:.0f} MB"
    yield ""
    yield from _form(fleet, found)
    yield ""
    yield (
        f"For comparison: if every rank logged {LOGGED_METRICS} numbers {LOGGED_STEPS_PER_SECOND} times a second to an "
        "experiment tracker, that would be "
        f"{_points(found.points_per_second_if_all_log)}. "
        f"Of one rank in {LOGGING_RANKS}, it would be {_points(found.points_per_second_if_few_log)}."
    )


def _form(fleet: PlannedFleet, found: FleetCost) -> Iterator[str]:
    """Yield what to install, and from which size on that is no longer enough."""
    if fleet.ranks <= found.measured_ranks:
        yield (
            f"One Prometheus holds this: it was measured with {found.measured_ranks:,} ranks at such an interval, "
            f"{found.measured_ranks // fleet.gpus:,} of these nodes."
        )
    elif found.servers == 1:
        measured_so_far = f"with {found.measured_ranks:,} ranks" if found.measured_ranks else "with none"
        yield (
            f"One Prometheus was measured {measured_so_far} at such an interval, and with {found.largest_ranks:,} at "
            "15s: scrape less often, and give the exporters --rank.series=few and --gpu.series=few. Rules for that:"
        )
        yield "  tachograph bundle --scrape-interval 15s --host-series few"
    else:
        yield (
            f"One Prometheus was measured with {found.largest_ranks:,} ranks, at 15s. Take {found.servers} cells, each "
            "with a Prometheus for its nodes, and a level above, which judges runs over several of them:"
        )
        yield "  tachograph bundle --scale-out CELLS.yml --scrape-interval 15s --host-series few"


def _points(points: int) -> str:
    return f"{humanize.count(points)} points a second, {humanize.byte_size(points * BYTES_PER_POINT)}/s"


def _whole(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number from 1 to {most:,}")
        return int(text)

    return read


def _interval(text: str) -> int:
    try:
        return duration.scrape_interval(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
