"""The rolling upgrade of bench/nodes.py: from the last release, built from the repository's history, under load.

Exporters first, one node after the other, then rules and routes, then clients, as docs/deploy/upgrade.md has it. The
release had no cells: one Prometheus and one Alertmanager watch four nodes.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from nodes_fleet import NODES, RANKS, OnHosts
from nodes_network import NetworkError
from nodes_rank import RUN
from nodes_scene import Scene
from tachograph.servers.prometheus_api import Prometheus, TimeSeries
from tachograph_lab.checkout import root, tools

sys.path.insert(0, str(root() / "grafana"))
import expressions

RELEASE = "0.2"
COMMIT = "bf5932f1e13b1c02726521be68c3959590ddcda2"
"""The last one of the release's day in CHANGELOG.md; there is no tag."""

GAP_SECONDS = 10.0
"""Between two nodes."""
RULES_SECONDS = 90.0
"""For the new rules: the longest that a panel's rule needs to show something."""
CLIENTS_SECONDS = 75.0

PARTS = ("prometheus", "alertmanager")


def release() -> Path:
    """Return where the release is kept: its `source`, and the environment `venv`."""
    return tools() / f"release-{RELEASE}"


def prepare() -> None:
    """Build the release unless that was done before; raise NetworkError."""
    if (release() / "ready").exists():
        return
    source, environment = release() / "source", release() / "venv"
    shutil.rmtree(release(), ignore_errors=True)
    source.mkdir(parents=True)
    packed = subprocess.run(["git", "-C", root(), "archive", COMMIT], capture_output=True, check=False)
    if packed.returncode:
        raise NetworkError(f"the release {RELEASE} is commit {COMMIT[:8]}, which this repository's history lacks")
    subprocess.run(["tar", "-x", "-C", source], input=packed.stdout, check=True)
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    install = [str(environment / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"{source}[exporter,tools]"], check=True)
    (release() / "ready").touch()


class OneTower(OnHosts):
    """The last release: one Prometheus with all rules, one Alertmanager."""

    parts = ("alertmanager", "prometheus")
    hosts = (*NODES, *parts)
    judges = ("prometheus",)

    def _start_nodes(self) -> None:
        self.aim("tachograph", {node: f"{node}:10024" for node in NODES})
        self.aim("node", {node: f"{node}:9100" for node in NODES})
        self.nodes.start(str(release() / "venv/bin/python"))

    def _source(self) -> Path:
        return release() / "source"

    def upgrade_nodes(self) -> Iterator[str]:
        """End each node's exporter and start this checkout's in its place; yield the node when that is done."""
        for node in NODES:
            self.children.end(f"exporter-{node}")
            self.nodes.start_exporter(node)
            yield node

    def upgrade_rules(self) -> None:
        """Put this checkout's rules and routes in place; Prometheus reads them again, Alertmanager is restarted."""
        for part in PARTS:
            for path in sorted((root() / part).rglob("*")):
                copy = self.folder / part / path.relative_to(root() / part)
                if path.is_file() and path.parent.name != "targets":
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, copy)
        for rules in (self.folder / "prometheus/rules").iterdir():
            if not (root() / "prometheus/rules" / rules.name).exists():
                rules.unlink()
        self._name_pager()
        (prometheus,) = (child for child in self.children.running if child.name == "prometheus")
        prometheus.process.send_signal(signal.SIGHUP)
        self.children.end("alertmanager")
        self.start_again()

    def upgrade_clients(self) -> None:
        """Let the training end as it should, and start it with this checkout's client."""
        self.nodes.end_ranks()
        for rank in range(RANKS):
            self.nodes.start_rank(rank)


def upgrade(scene: Scene) -> None:
    """Upgrade nodes, rules and clients from the last release while a run trains."""
    fleet = scene.fleet
    assert isinstance(fleet, OneTower)
    server, began = Prometheus(fleet.url("prometheus")), time.time()
    before = drawn(server, release() / "source/grafana/dashboards")
    for _ in fleet.upgrade_nodes():
        scene.pause(GAP_SECONDS)
    scene.pause(GAP_SECONDS)
    after = drawn(server, release() / "source/grafana/dashboards")
    scene.faults += [f"new exporters: nothing in {name}" for name in lost_panels(before, after)]
    fleet.upgrade_rules()
    scene.pause(RULES_SECONDS)
    now = drawn(server, root() / "grafana/dashboards")
    scene.faults += [f"new rules: nothing in {name}" for name in lost_panels(before, now)]
    scene.faults += fallen_counters(server, time.time() - began)
    fleet.upgrade_clients()
    scene.pause(CLIENTS_SECONDS)
    fleet.wait_seen()
    last = drawn(server, root() / "grafana/dashboards")
    scene.faults += [f"new clients: nothing in {name}" for name in lost_panels(now, last)]
    scene.notes.append(f"{sum(before.values())} panels with series before, {sum(now.values())} with the new rules")


def fallen_counters(server: Prometheus, seconds: float) -> list[str]:
    """Return the counters of ranks and runs that fell within so many seconds."""
    return fallen(server.samples('{__name__=~"tachograph_(train|run)_.+_total"}', seconds, time.time()))


def fallen(counters: Sequence[TimeSeries]) -> list[str]:
    """Return those of some counters that fell."""
    return sorted(
        f"{one.labels['__name__']} fell on {one.labels['instance']}"
        for one in counters
        if any(later < earlier for (_, earlier), (_, later) in pairwise(one.samples))
    )


def drawn(server: Prometheus, dashboards: Path) -> dict[str, bool]:
    """Return for each panel of a folder's dashboards whether any of its queries returns series now."""
    found: dict[str, bool] = {}
    for path in sorted(dashboards.glob("*.json")):
        dashboard: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values = expressions.defaults(dict(dashboard), RUN)
        for one in expressions.asked(dict(dashboard)):
            if one.kind == "annotation":  # marks a moment, which passes
                continue
            name = f"{one.dashboard}: {one.place}"
            found[name] = found.get(name, False) or bool(server.instant(expressions.filled(one.expression, values)))
    return found


def lost_panels(before: Mapping[str, bool], after: Mapping[str, bool]) -> list[str]:
    """Return the panels that showed something before, are still there, and show nothing."""
    return [name for name, shown in before.items() if shown and not after.get(name, True)]
