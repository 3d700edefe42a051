"""The cost of a level above: one real cell of simulated nodes whose Prometheus writes to it once for each cell.

Every copy has names of its own for run, nodes and GPUs, so that the level above judges as many runs on as many nodes as
that many cells would send. Two cores do not hold four cells of 16,384 ranks besides it; what they send, one cell can.
Printed are series, samples a second, memory and CPU of the level above, its most expensive groups, and whom its pages
name: in healthy runs, with a straggler in each, and in hangs.

    python bench/cells.py --cells 4 --ranks 16384 --scrape-interval 15s --rank-series few
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rules import PAGES, Bench, add_series_levels, node_targets, patterns, series_flags, states
from rules_pages import RANKS_PER_NODE
from tachograph.bundle import scale_out
from tachograph.bundle.site import Site
from tachograph.text import duration
from tachograph_lab import binaries
from tachograph_lab.processes import Child, answers, free_port
from tachograph_lab.table import save

CELL = "c0"


def copies(write: Mapping[str, Any], cells: int) -> Iterator[dict[str, Any]]:
    """Yield what a cell writes, once for each cell: the same series under names of its own."""
    for number in range(cells):
        renamed = [
            {"source_labels": [label], "regex": "(.+)", "target_label": label, "replacement": f"$1-{number}"}
            for label in ("run", "instance", "uuid")
        ]
        name = {"source_labels": ["cell"], "regex": CELL, "target_label": "cell", "replacement": f"c{number}"}
        yield {
            **write,
            "name": f"c{number}",
            "write_relabel_configs": [*write["write_relabel_configs"], *renamed, name],
        }


class AboveBench(Bench):
    """A fleet in one cell, which writes as several, and the level above; `prometheus` is the latter."""

    def __init__(self, folder: Path, programs: Mapping[str, Path], ranks: int, cells: int, site: Site) -> None:
        super().__init__(folder, programs, ranks, folder, site)
        self._cells = cells

    def _start_prometheus(self, fleet_port: int, port: int) -> None:
        own, above = free_port(), port
        self._configure(fleet_port, own, above)
        program = self._programs["prometheus"]
        receives = ["--web.enable-remote-write-receiver", "--rules.alert.for-grace-period=15s"]
        self.prometheus = self._started("above", program, above, "above/prometheus-0.yml", *receives)
        self.cell = self._started("cell", program, own, f"cells/{CELL}/prometheus.yml")

    def _started(self, name: str, program: Path, port: int, file: str, *flags: str) -> Child:
        command: list[str | Path] = [
            program, f"--config.file={self._folder / file}", f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={self._folder / 'data' / name}", *flags,
        ]  # fmt: skip
        child = self.children.start(name, command)
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), 60)
        return child

    def _configure(self, fleet_port: int, own: int, above: int) -> None:
        nodes = [f"node-{number:04d}" for number in range(self._nodes)]
        plan = scale_out.ScaleOut(
            {f"c{number}": nodes for number in range(self._cells)}, scale_out.PORTS,
            [f"127.0.0.1:{above}"], ["127.0.0.1:9"],
        )  # fmt: skip
        for name, text in scale_out.files(self._site, plan).items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        cell = self._folder / "cells" / CELL
        for job, targets in node_targets(self._nodes, fleet_port):
            (cell / "targets" / f"{job}.yml").write_text(json.dumps(targets))
        (cell / "targets/prometheus.yml").write_text(json.dumps([{"targets": [f"127.0.0.1:{own}"]}]))
        (self._folder / "above/targets/alertmanager.yml").write_text("[]")
        file = cell / "prometheus.yml"
        configuration = yaml.safe_load(file.read_text())
        (write,) = configuration["remote_write"]
        configuration["remote_write"] = list(copies(write, self._cells))
        file.write_text(yaml.safe_dump(configuration))


def measure(options: argparse.Namespace, programs: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """Measure the level above: warm up, then healthy, straggler and hang."""
    seconds = int(duration.parse(options.scrape_interval or "0"))
    site = Site({}, scrape_seconds=seconds, host_series=options.host_series)
    result: dict[str, Any] = {"cells": options.cells, "ranks": options.ranks}
    bench = AboveBench(folder, programs, options.ranks, options.cells, site)
    with bench:
        for state, found in states(bench, options.cells * options.ranks, options):
            result[state] = found
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1024, help="ranks of each cell")
    parser.add_argument("--suite", default="bookworm", help="Debian release whose Prometheus is measured")
    parser.add_argument("--scrape-interval", help="as of `tachograph bundle` (default: as shipped)")
    add_series_levels(parser)
    parser.add_argument("--warm-up", type=float, default=150, help="seconds before the measurement")
    parser.add_argument("--onset", type=float, default=75, help="seconds between a fault and its measurement")
    parser.add_argument("--seconds", type=float, default=60, help="seconds to measure each state")
    parser.add_argument("--faults", nargs="*", default=["straggler", "hang"], choices=[*PAGES])
    parser.add_argument("--slowest", type=int, default=12, help="number of slowest rules to list")
    options = parser.parse_args()
    programs = binaries.find(options.suite)
    with tempfile.TemporaryDirectory(prefix="tachograph-cells-") as name:
        patterns(Path(name), programs["node_exporter"], *series_flags(options))
        found = measure(options, programs, Path(name))
    save(f"cells-{options.suite}", {"ranks in a node": RANKS_PER_NODE, **found})


if __name__ == "__main__":
    main()
