"""The cost of the rules at 1,024, 4,096 and 16,384 ranks in one real Prometheus with the shipped configuration.

A helper process serves the pages of a simulated fleet, nodes of 8 ranks and 8 GPUs, modelled on a real exporter and a
real node_exporter. Measured are series, samples per second, memory and CPU of Prometheus, and the duration of every
rule group against its interval: in a healthy run, with a straggler, and in a hang.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exporter import ready_exporter
from observe import cpu_seconds, resident_mb
from rules_cpu import costs
from rules_pages import RANKS_PER_NODE
from rules_report import LISTED, Figures, cores, document, row, with_rows
from tachograph.bundle.rules import at_scrapes
from tachograph.bundle.site import Site
from tachograph.text import duration
from tachograph_lab import binaries
from tachograph_lab.demo.stack import NODE_COLLECTORS
from tachograph_lab.processes import Child, Children, answers, free_port
from tachograph_lab.table import save, show

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "evidence" / "rules-bench.md"
MEASURED = ROOT / "exporter" / "tachograph" / "size" / "measured.json"
LOOK_SECONDS = 2.0
PATIENCE_SECONDS = 300.0
PAGES = {"straggler": "StragglerRank", "hang": "RunHung", "nan": "LossNotFinite", "killed": "RankDead"}
"""The page of each fault. Its seconds count from when nodes have concluded what it takes: they are the rules' own."""
BUDGET = 0.5
"""The share of its interval that a group may take (DESIGN, budgets)."""


def get(url: str) -> str:
    """Return a page, with a long timeout for busy machines."""
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


def patterns(folder: Path, node_exporter: Path, *flags: str) -> None:
    """Write the pages of a real exporter, with these flags, and a real node_exporter: the patterns for the fleet's."""
    with ready_exporter(free_port(), *flags) as (_, url):
        (folder / "exporter.prom").write_text(get(url))
    port = free_port()
    collectors = ["--collector.disable-defaults", *(f"--collector.{name}" for name in NODE_COLLECTORS)]
    with Children(folder) as children:
        command: list[str | Path] = [node_exporter, f"--web.listen-address=127.0.0.1:{port}", *collectors]
        host = children.start("node_exporter", command)
        url = f"http://127.0.0.1:{port}/metrics"
        host.wait_until(lambda: answers(url), 30)
        (folder / "node_exporter.prom").write_text(get(url))


def configure(folder: Path, nodes: int, port: int, rules: Path, site: Site) -> Path:
    """Write a bundle with the fleet's nodes as targets and the rules to measure; return its configuration."""
    own = folder / "prometheus"
    shutil.rmtree(own, ignore_errors=True)
    (own / "rules").mkdir(parents=True)
    (own / "targets").mkdir()
    for path in rules.glob("*.yml"):
        (own / "rules" / path.name).write_text(at_scrapes(path.read_text(), site.scrape_seconds))
    for job, targets in node_targets(nodes, port):
        (own / "targets" / f"{job}.yml").write_text(json.dumps(targets))
    (own / "prometheus.yml").write_text(site.prometheus()["prometheus.yml"])
    return own / "prometheus.yml"


def node_targets(nodes: int, port: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each job with its targets: a path for each node of the fleet at this port."""
    for job, kind in (("tachograph", "exporter"), ("node", "host")):
        yield (
            job,
            [
                {
                    "targets": [f"127.0.0.1:{port}"],
                    "labels": {"instance": f"node-{node:04d}", "__metrics_path__": f"/node/{node}/{kind}"},
                }
                for node in range(nodes)
            ],
        )


class Bench:
    """A fleet and a Prometheus that watches it."""

    def __init__(self, folder: Path, programs: Mapping[str, Path], ranks: int, rules: Path, site: Site) -> None:
        cores = str(min(2, os.cpu_count() or 1))
        self.children = Children(folder, environment={"GOMAXPROCS": cores})
        self._folder, self._programs, self._nodes = folder, programs, ranks // RANKS_PER_NODE
        self._rules, self._site = rules, site
        self.fleet: Child
        self.prometheus: Child

    def __enter__(self) -> Bench:
        fleet_port, port = free_port(), free_port()
        self._fleet_url, self.url = f"http://127.0.0.1:{fleet_port}", f"http://127.0.0.1:{port}"
        script = Path(__file__).with_name("rules_fleet.py")
        fleet = [sys.executable, str(script), str(fleet_port), str(self._nodes), str(self._folder)]
        self.fleet = self.children.start("fleet", fleet)
        self.fleet.wait_until(lambda: answers(f"{self._fleet_url}/ready"), 180)
        self._start_prometheus(fleet_port, port)
        return self

    def _start_prometheus(self, fleet_port: int, port: int) -> None:
        configuration = configure(self._folder, self._nodes, fleet_port, self._rules, self._site)
        command: list[str | Path] = [
            self._programs["prometheus"], f"--config.file={configuration}", f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={self._folder / 'data'}", "--rules.alert.for-grace-period=15s",
        ]  # fmt: skip
        self.prometheus = self.children.start("prometheus", command)
        self.prometheus.wait_until(lambda: answers(f"{self.url}/-/ready"), 60)

    def __exit__(self, *error: object) -> None:
        self.children.stop()
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    def enter(self, state: str) -> None:
        """Have the fleet enter a state."""
        get(f"{self._fleet_url}/state/{state}")

    def figures(self) -> Figures:
        """Return the metrics of Prometheus itself now."""
        pid = [self.prometheus.pid]
        return Figures(get(f"{self.url}/metrics"), cpu_seconds(pid), resident_mb(pid), time.monotonic())

    def rest(self) -> None:
        """Stop scraping and evaluating."""
        configuration = self._folder / "prometheus" / "prometheus.yml"
        configuration.write_text("global: {scrape_interval: 1h}\n")
        self.prometheus.process.send_signal(signal.SIGHUP)
        self.prometheus.wait_until(lambda: "prometheus_rule_group_interval_seconds{" not in self.figures().page, 60)

    def rule_seconds(self) -> dict[str, float]:
        """Return the duration of each rule's last evaluation, by group and name."""
        with urllib.request.urlopen(f"{self.url}/api/v1/rules", timeout=PATIENCE_SECONDS) as answer:
            groups = json.load(answer)["data"]["groups"]
        return {
            f"{group['name']} {number} {rule['name']}": float(rule["evaluationTime"])
            for group in groups
            for number, rule in enumerate(group["rules"])
        }

    def alerts(self) -> list[str]:
        """Return the names of the firing alerts, with their number."""
        query = urllib.parse.quote('count by (alertname) (ALERTS{alertstate="firing",alertname!="TachographWatchdog"})')
        with urllib.request.urlopen(f"{self.url}/api/v1/query?query={query}", timeout=PATIENCE_SECONDS) as answer:
            rows = json.load(answer)["data"]["result"]
        return sorted(f"{one['metric']['alertname']} × {one['value'][1]}" for one in rows)

    def page(self, state: str, seconds: float) -> dict[str, Any]:
        """Wait for so long after a state was entered; return whom its page names then, and after how long it fired."""
        begin, after = time.monotonic(), None
        while (passed := time.monotonic() - begin) < seconds:
            if after is None and self.named(PAGES[state]):
                after = round(passed)
            time.sleep(min(LOOK_SECONDS, seconds - passed))
        return {"page": PAGES[state], "after": after, "named": self.named(PAGES[state])}

    def named(self, alert: str) -> list[str]:
        """Return whom the firing pages of an alert name: run, rank and node."""
        query = urllib.parse.quote(f'ALERTS{{alertstate="firing",alertname="{alert}",severity="critical"}}')
        with urllib.request.urlopen(f"{self.url}/api/v1/query?query={query}", timeout=PATIENCE_SECONDS) as answer:
            found = [one["metric"] for one in json.load(answer)["data"]["result"]]
        return sorted(f"{one['run']}: rank {one.get('rank', '-')} on {one.get('instance', '-')}" for one in found)

    def watch(self, seconds: float) -> dict[str, Any]:
        """Read the metrics every 2 s; return the figures, each group's durations, and the machine's load."""
        first = last = self.figures()
        helper = cpu_seconds([self.fleet.pid])
        looks: list[Figures] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            looks.append(last := self.figures())
        helper = (cpu_seconds([self.fleet.pid]) - helper) / (last.moment - first.moment)
        return row(first, looks, helper=helper, alerts=self.alerts(), load=os.getloadavg()[0])


def measure(ranks: int, options: argparse.Namespace, programs: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """Measure one size: warm up, then healthy, straggler and hang."""
    result: dict[str, Any] = {"ranks": ranks}
    moments = {}
    seconds = int(duration.parse(options.scrape_interval or "0"))
    site = Site({}, scrape_seconds=seconds, host_series=options.host_series)
    with Bench(folder, programs, ranks, options.rules, site) as bench:
        for state, found in states(bench, ranks, options):
            result[state] = found
            moments[state] = time.time() - 1
        if options.cpu:
            bench.rest()
            for state, moment in moments.items():  # the document shows the last one
                result["cpu"] = costs(bench.prometheus.pid, bench.url, moment, folder / "prometheus" / "rules")
                report_cpu(ranks, state, result["cpu"], options.slowest)
    return result


def states(bench: Bench, ranks: int, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Warm up, and yield each state once it is printed: healthy at first, then each fault."""
    time.sleep(options.warm_up)
    for state in ("healthy", *options.faults):
        page = {}
        if state != "healthy":
            bench.enter(state)
            page = bench.page(state, options.onset)
        found = {**bench.watch(options.seconds), **page}
        slowest = sorted(bench.rule_seconds().items(), key=lambda item: -item[1])[: options.slowest]
        found["slowest rules"] = dict(slowest)
        report(ranks, state, found)
        yield state, found


def report(ranks: int, state: str, found: Mapping[str, Any]) -> None:
    """Print one state of one size."""
    groups = sorted(found["groups"].items(), key=lambda item: -item[1]["p50"] / item[1]["interval"])
    rows = [
        {"group": name, "interval": one["interval"], "p50 ms": one["p50"] * 1e3, "max ms": one["max"] * 1e3,
         "% of interval": 100 * one["p50"] / one["interval"]}
        for name, one in groups[:LISTED]
    ]  # fmt: skip
    facts = {key: value for key, value in found.items() if not isinstance(value, dict)}
    show(f"{ranks} ranks, {state}: {facts}", rows, f"budget: {BUDGET:.0%} of the interval")
    for name, seconds in found["slowest rules"].items():
        print(f"  {seconds * 1e3:9.1f} ms  {name}")


def report_cpu(ranks: int, state: str, groups: Mapping[str, Any], slowest: int) -> None:
    """Print the CPU time of groups and rules in a state."""
    most_expensive = sorted(groups.items(), key=lambda item: -item[1]["cpu"] / item[1]["interval"])
    rows = [
        {"group": name, "interval": one["interval"], "CPU ms": one["cpu"] * 1e3,
         "% of interval": 100 * one["cpu"] / one["interval"]}
        for name, one in most_expensive[:LISTED]
    ]  # fmt: skip
    show(f"{ranks} ranks, {state}: CPU of each group's evaluation, {cores(groups):.2f} cores in all", rows)
    rules = {f"{name} {rule}": spent for name, one in groups.items() for rule, spent in one["rules"].items()}
    for rule, spent in sorted(rules.items(), key=lambda item: -item[1])[:slowest]:
        print(f"  {spent * 1e3:9.1f} ms  {rule}")


def add_series_levels(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how much of the fleet's nodes is shown and stored."""
    for what in ("rank", "gpu"):
        parser.add_argument(f"--{what}-series", default="dashboards", help=f"the exporters' --{what}.series")
    parser.add_argument("--host-series", default="all", help="as of `tachograph bundle`")


def series_flags(options: argparse.Namespace) -> tuple[str, str]:
    """Return the exporters' flags that these options stand for."""
    return f"--rank.series={options.rank_series}", f"--gpu.series={options.gpu_series}"


def main() -> None:
    """Measure each size and write docs/evidence/rules-bench.md if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--suite", default="bookworm", help="Debian release whose Prometheus is measured")
    parser.add_argument("--rules", type=Path, default=ROOT / "prometheus/rules", help="folder of rule files")
    parser.add_argument("--scrape-interval", help="as of `tachograph bundle` (default: as shipped)")
    add_series_levels(parser)
    parser.add_argument("--warm-up", type=float, default=150, help="seconds before the measurement")
    parser.add_argument("--onset", type=float, default=45, help="seconds between a fault and its measurement")
    parser.add_argument("--seconds", type=float, default=120, help="seconds to measure each state")
    parser.add_argument("--faults", nargs="*", default=["straggler", "hang"], choices=[*PAGES])
    parser.add_argument("--slowest", type=int, default=12, help="number of slowest rules to list")
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="also measure each rule's CPU time, which does not depend on the machine's load",
    )
    parser.add_argument("--doc", action="store_true", help="write docs/evidence/rules-bench.md")
    parser.add_argument(
        "--size", action="store_true", help="write what `tachograph size` scales from, sizes as measured"
    )
    options = parser.parse_args()
    programs = binaries.find(options.suite)
    version = ".".join(map(str, binaries.version(programs["prometheus"])))
    with tempfile.TemporaryDirectory(prefix="tachograph-rules-") as name:
        patterns(Path(name), programs["node_exporter"], *series_flags(options))
        found = [measure(ranks, options, programs, Path(name)) for ranks in options.ranks]
    timing = {"warm-up": options.warm_up, "onset": options.onset, "seconds": options.seconds}
    result = {
        "prometheus": version,
        "suite": options.suite,
        "gogc": os.environ.get("GOGC", "100"),
        "scrape": options.scrape_interval or "5s, some rules every 2s",
        **timing,
        "sizes": found,
    }
    save(f"rules-{options.suite}", result)
    if options.doc:
        DOCUMENT.write_text(document(DOCUMENT.read_text(), result))
        print(f"  written: {DOCUMENT.relative_to(ROOT)}")
    if options.size:
        MEASURED.write_text(
            with_rows(MEASURED.read_text(), found, options.scrape_interval or "5s", options.rank_series)
        )
        print(f"  written: {MEASURED.relative_to(ROOT)}")
    over = [
        f"{one['ranks']} ranks, {state}: {group}"
        for one in found
        for state in ("healthy", *options.faults)
        for group, cost in one[state]["groups"].items()
        if cost["p50"] > BUDGET * cost["interval"]
    ]
    median = statistics.median(one["healthy"]["load"] for one in found)
    sys.exit("\n".join([f"above {BUDGET:.0%} of the interval (load {median:.1f}):", *over]) if over else 0)


if __name__ == "__main__":
    main()
