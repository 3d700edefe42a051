"""The cost of the dashboards: every query of every dashboard against a real Prometheus that watches 1,024 ranks.

The fleet, its Prometheus, configuration and rules are those of bench/rules.py; one rank is late and an alert fires.
Once the samples have been collected, scraping and rules stop; then each query is sent as Grafana would send it, and
each dashboard is opened as a browser opens it, six requests at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rules import PATIENCE_SECONDS, ROOT, Bench, patterns
from rules_cpu import process_seconds
from tachograph.bundle.site import Site
from tachograph_lab import binaries
from tachograph_lab.processes import ProcessError
from tachograph_lab.table import save, show

sys.path.insert(0, str(ROOT / "grafana"))
import expressions

DOCUMENT = ROOT / "docs" / "evidence" / "dashboards-bench.md"
FENCE = "<!-- written by bench/dashboards.py --doc -->"
STEPS = 360
"""Points per series: half an hour of samples at intervals of 5 s."""
BUDGET = 0.5
"""The limit for a query on two cores, in seconds."""
TIMES, CHEAP = 3, 0.25
"""How often a query is repeated, unless it took less CPU seconds than this."""
LISTED = 8
AT_ONCE = 6
"""Requests that a browser has open to one server."""
SCREEN_REQUESTS, SCREEN_SECONDS = 30, 2.0
"""The limits for what Run asks before anybody scrolls or opens a row."""
OPENED = 5
"""How often a dashboard is opened; the median counts."""


def ask(url: str, one: expressions.Asked, text: str, began: float, end: float) -> int:
    """Send a query as Grafana would; return the number of series in the result."""
    asked: dict[str, object] = {"query": text, "timeout": f"{PATIENCE_SECONDS:.0f}s"}
    path = "query" if one.instant else "query_range"
    step = (end - began) / min(STEPS, one.points or STEPS)
    asked |= {"time": end} if one.instant else {"start": began, "end": end, "step": step}
    body = urllib.parse.urlencode(asked).encode()
    with urllib.request.urlopen(f"{url}/api/v1/{path}", body, timeout=PATIENCE_SECONDS) as answer:
        return len(json.load(answer)["data"]["result"])


def rest(bench: Bench) -> float:
    """Stop scraping and rules; return the time of the last sample. On a busy machine this may take a while."""
    moment = time.time() - 1
    for _ in range(10):
        with contextlib.suppress(ProcessError):
            bench.rest()
            return moment
    raise ProcessError("Prometheus goes on scraping")


def measure(pid: int, url: str, run: str, began: float, end: float) -> Iterator[dict[str, Any]]:
    """Yield every query of every dashboard with its seconds, its CPU seconds and its series."""
    for name, dashboard in expressions.load().items():
        values = expressions.defaults(dashboard, run) | {"__range": f"{end - began:.0f}s"}
        for one in expressions.asked(dashboard):
            text = expressions.filled(one.expression, values)
            wall: list[float] = []
            cpu: list[float] = []
            series = 0
            while not cpu or (len(cpu) < TIMES and min(cpu) > CHEAP):
                before, spent = time.monotonic(), process_seconds(pid)
                series = ask(url, one, text, began, end)
                wall.append(time.monotonic() - before)
                cpu.append(process_seconds(pid) - spent)
            yield {
                "dashboard": name, "place": one.place, "legend": one.legend, "kind": one.kind, "series": series,
                "row": one.row, "on": one.on,
                "seconds": statistics.median(wall), "cpu": statistics.median(cpu), "query": text,
            }  # fmt: skip


def screens(url: str, run: str, began: float, end: float) -> Iterator[dict[str, Any]]:
    """Yield each dashboard as it opens, and each of its closed rows, with its requests and its seconds."""
    for name, dashboard in expressions.load().items():
        values = expressions.defaults(dashboard, run) | {"__range": f"{end - began:.0f}s"}
        everything = [one for one in expressions.asked(dashboard) if one.on]
        for row in dict.fromkeys(one.row for one in everything):
            of = [one for one in everything if one.row == row]
            seconds = statistics.median(opened(url, of, values, began, end) for _ in range(OPENED))
            yield {"dashboard": name, "row": row, "requests": len(of), "seconds": seconds}


def opened(url: str, asked: Sequence[expressions.Asked], values: dict[str, str], began: float, end: float) -> float:
    """Return the seconds that all of it takes: variables one after the other, the rest as a browser sends it."""
    start = time.monotonic()
    rest_of_it = [one for one in asked if one.kind != "variable"]
    for one in asked:
        if one.kind == "variable":
            ask(url, one, expressions.filled(one.expression, values), began, end)
    with ThreadPoolExecutor(AT_ONCE) as browser:
        texts = [expressions.filled(one.expression, values) for one in rest_of_it]
        list(browser.map(lambda one, text: ask(url, one, text, began, end), rest_of_it, texts))
    return time.monotonic() - start


def document(text: str, result: dict[str, Any]) -> str:
    """Return the document with the new measurements after its marker."""
    found = result["queries"]
    lines = [
        f"Prometheus {result['prometheus']}, {result['ranks']:,} ranks, {result['series']:,} series, "
        f"{result['minutes']:.0f} minutes of samples; {len(found)} queries; load of the machine {result['load']:.1f}.",
        "",
        "| dashboard | queries | CPU of all, s | slowest, CPU ms | slowest, ms |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(one["dashboard"] for one in found):
        of = [one for one in found if one["dashboard"] == name]
        cpu, wall = [one["cpu"] for one in of], [one["seconds"] for one in of]
        lines.append(f"| {name} | {len(of)} | {sum(cpu):.2f} | {1e3 * max(cpu):.0f} | {1e3 * max(wall):.0f} |")
    lines += ["", f"Opened as a browser does, {AT_ONCE} requests at a time; a row is one that is closed at first:", ""]
    lines += ["| dashboard | row | requests | CPU of its queries, s | s |", "|---|---|---|---|---|"]
    for one in result["screens"]:
        of = [each for each in found if each["on"] and all(each[key] == one[key] for key in ("dashboard", "row"))]
        cpu = sum(each["cpu"] for each in of)
        lines.append(f"| {one['dashboard']} | {one['row']} | {one['requests']} | {cpu:.2f} | {one['seconds']:.2f} |")
    lines += ["", f"The {LISTED} most expensive:", "", "| CPU ms | ms | series | dashboard | panel, mark or variable |"]
    lines.append("|---|---|---|---|---|")
    for one in most_expensive(found):
        where = f"{one['place']} ({one['legend']})" if one["legend"] not in ("", "__auto") else one["place"]
        lines.append(
            f"| {1e3 * one['cpu']:.0f} | {1e3 * one['seconds']:.0f} | {one['series']} | {one['dashboard']} | {where} |"
        )
    return text.split(FENCE, maxsplit=1)[0] + FENCE + "\n\n" + "\n".join(lines) + "\n"


def most_expensive(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the queries that take the most CPU time, the most expensive first."""
    return sorted(found, key=lambda one: -one["cpu"])[:LISTED]


def main() -> int:
    """Measure, print what is expensive, write the document if asked; return 1 if something exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--suite", default="bookworm", help="Debian release whose Prometheus is measured")
    parser.add_argument("--minutes", type=float, default=10, help="minutes of samples to collect")
    parser.add_argument("--doc", action="store_true", help="write docs/evidence/dashboards-bench.md")
    options = parser.parse_args()
    programs = binaries.find(options.suite)
    with tempfile.TemporaryDirectory(prefix="tachograph-dashboards-") as name:
        patterns(Path(name), programs["node_exporter"])
        with Bench(Path(name), programs, options.ranks, ROOT / "prometheus/rules", Site({})) as bench:
            began = time.time()
            time.sleep(30 * options.minutes)
            bench.enter("straggler")
            time.sleep(30 * options.minutes)
            page, firing = bench.figures().page, bench.alerts()
            heads = [line for line in page.splitlines() if line.startswith("prometheus_tsdb_head_series ")]
            series = float(heads[0].split()[1])
            end = rest(bench)
            with urllib.request.urlopen(f"{bench.url}/api/v1/label/run/values", timeout=PATIENCE_SECONDS) as answer:
                run = json.load(answer)["data"][0]
            found = list(measure(bench.prometheus.pid, bench.url, run, began, end))
            seen = list(screens(bench.url, run, began, end))
    version = ".".join(map(str, binaries.version(programs["prometheus"])))
    result = {"prometheus": version, "ranks": options.ranks, "series": round(series), "minutes": options.minutes,
              "load": os.getloadavg()[0], "firing": firing, "queries": found,
              "screens": seen}  # fmt: skip
    save(f"dashboards-{options.suite}", result)
    listed = [{"panel": f"{one['dashboard']}: {one['place']}", "CPU ms": 1e3 * one["cpu"], "ms": 1e3 * one["seconds"],
               "series": one["series"]} for one in most_expensive(found)]  # fmt: skip
    show(
        f"{options.ranks} ranks: the {LISTED} most expensive of {len(found)} queries",
        listed,
        f"firing: {', '.join(firing)}",
    )
    show("opened, six requests at a time", seen, f"load of the machine {result['load']:.1f}")
    if options.doc:
        DOCUMENT.write_text(document(DOCUMENT.read_text(), result))
    over = [one for one in found if one["cpu"] > BUDGET]
    for one in over:
        print(f"over {BUDGET} s: {one['dashboard']}: {one['place']}: {one['query'][:200]}", file=sys.stderr)
    slow = [one for one in seen if (one["dashboard"], one["row"]) == ("run", "")
            and (one["requests"] > SCREEN_REQUESTS or one["seconds"] > SCREEN_SECONDS)]  # fmt: skip
    for one in slow:
        print(f"run: {one['requests']} requests, {one['seconds']:.2f} s until the first screen stands", file=sys.stderr)
    return bool(over or slow)


if __name__ == "__main__":
    sys.exit(main())
