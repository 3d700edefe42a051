"""Prometheus and Alertmanager as shipped, over a replay that has just happened and a node that trains now."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from tachograph_lab import binaries
from tachograph_lab.monitoring import Monitoring
from tachograph_lab.processes import free_port
from tachograph_lab.replay.input_series import selector
from tachograph_lab.replay.recording import record
from tachograph_lab.replay.scraped import MISSING, STALE, is_a
from tachograph_lab.replay.shipped_rules import shipped
from tachograph_lab.scenario import load
from tests.runbooks.page import PAGES, blocks

AHEAD = 240.0
"""Seconds of the replay that lie ahead when Prometheus starts: its rules run live, and read the last 20 s and more.

On a busy machine it is two minutes until they have run often enough, and all is asked.
"""

ROUNDS = 7
"""Evaluations after which every recorded series is there: records of records are five deep."""

LIVE_RUN = "live"
LOOP = """
import sys, threading, tachograph
recorder = tachograph.Recorder(run=sys.argv[1], rank=0, world_size=1)
pause = threading.Event()
while True:
    with recorder.step():
        pause.wait(0.05)
"""


def exposition(scenario: Path, end: float) -> Iterator[str]:
    """Yield as OpenMetrics what Prometheus would have scraped of a scenario that ends at Unix time `end`."""
    words = {word for text in PAGES.values() for line in blocks(text, "promql") for word in re.findall(r"\w+", line)}
    recording = record(load(scenario), shipped().words | words)
    began = end - recording.seconds
    for one in recording.series():
        left_out = is_a(MISSING, one.values) | is_a(STALE, one.values)
        for place, (value, skipped) in enumerate(zip(one.values.tolist(), left_out.tolist(), strict=True)):
            if not skipped:
                at = began + (one.first + place * recording.spacing) * recording.grid_seconds
                yield f"{selector(one)} {value} {at:.0f}\n"
    yield "# EOF\n"


class MonitoredReplay(Monitoring):
    """`query` answers for the replay and for the run `live`, which a real exporter shows; rules record both."""

    def __init__(self, folder: Path, scenario: Path, suite: str) -> None:
        super().__init__(folder, "http://127.0.0.1:9", suite=suite, intervals={"scrape": 1, "evaluation": 1})
        self._scenario = scenario
        self.exporter = f"127.0.0.1:{free_port()}"

    def _start_nodes(self) -> None:
        socket = Path(self.scratch) / "rank.sock"
        flags = ["--no-gpu", f"--web.listen-address={self.exporter}", f"--socket={socket}"]
        self.children.start("exporter", [sys.executable, "-m", "tachograph", "exporter", *flags])
        loop = [sys.executable, "-c", LOOP, LIVE_RUN]
        self.rank = self.children.start("rank", loop, {"TACHOGRAPH_SOCKET": str(socket)})
        self.aim("tachograph", {self.exporter: self.exporter})
        self._write_past()
        for path in (self.folder / "prometheus/rules").glob("*.yml"):  # no test waits for a slow group
            text = re.sub(r"(?m)^    interval: .+\n", "", path.read_text(encoding="utf-8"))
            path.write_text(text, encoding="utf-8")
        path = self.folder / "prometheus/prometheus.yml"
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        settings["storage"] = {"tsdb": {"out_of_order_time_window": "1h"}}  # what is recorded lies before what is ahead
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")

    def _write_past(self) -> None:
        samples = self.folder / "samples.txt"
        with samples.open("w", encoding="utf-8") as file:
            file.writelines(exposition(self._scenario, time.time() // 1 + AHEAD))
        promtool = binaries.find(self._suite)["promtool"]
        make = [promtool, "tsdb", "create-blocks-from", "openmetrics", samples, self._data("prometheus")]
        subprocess.run(
            make, env={**os.environ, **self.children.environment}, check=True, capture_output=True, timeout=120
        )

    def wait(self) -> None:
        """Wait until the rules have been evaluated often enough, and the live run is in their series."""
        prometheus = next(child for child in self.children.running if child.name == "prometheus")
        iterations = f"min(prometheus_rule_group_iterations_total) >= {ROUNDS}"
        prometheus.wait_until(lambda: bool(self.query(f'run:ranks:count{{run="{LIVE_RUN}"}}')), 120)
        prometheus.wait_until(lambda: bool(self.query(iterations)), 120)

    @property
    def addresses(self) -> Mapping[str, str]:
        """What a reader of a runbook would fill in for the live run."""
        own = f"{self.scratch}/rank.web.sock"
        return {
            "blackbox capture <run>": f"blackbox capture {LIVE_RUN} --exporter unix:{own}",  # elsewhere: a password
            "/run/tachograph/rank.web.sock": own,
            "<run>": LIVE_RUN,
            "<rank>": "0",
            "localhost:10024": self.exporter,
            "<node>:10024": self.exporter,
            "<node>": self.exporter,
            "<alertmanager>:9093": self.address("alertmanager"),
            "<prometheus>:9090": self.address("prometheus"),
        }
