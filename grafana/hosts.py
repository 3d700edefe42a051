"""Which nodes and GPUs a hardware dashboard asks for, and how their alerts are selected.

Nodes are the chosen run's, or all that have an exporter, whether a run is there or not.
"""

from __future__ import annotations

from panels import variable
from series import RUNS, of_cluster, of_nodes
from shell import ALL, MANY
from tachograph.catalog import index as c

NODES = '{__name__=~"node:run:info|up",cluster=~"$cluster",job=~"tachograph|dcgm|",run=~"$run"}'
"""Every node that is scraped, which knows no run, and every node of a run, which knows no job: what $run narrows."""
WHERE = f"on (instance) group by (instance) (last_over_time({NODES}[1h]))"
"""Also where the run recently was, because people look for what killed it once it is gone."""

RUN = variable("run", "Run", f"label_values({of_cluster(RUNS, run='.*$find.*')}, run)", **{**ALL, "allValue": "^$"})
"""All is every node, with and without a run: `^$` is the run of `up`."""
NODE = variable("instance", "Node", f"label_values({NODES}, instance)", **MANY)
FIRES = {"alertstate": "firing", "severity": "critical|warning|info"}
GPU = variable("gpu", "GPU", f"label_values({of_nodes(c.GPU_INFO)}, gpu)", **MANY)


def of_hosts(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for the chosen nodes."""
    return f"({of_nodes(metric, **matchers)} and {WHERE})"


def of_gpus(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for the chosen GPUs of the chosen nodes."""
    return of_hosts(metric, gpu="$gpu", **matchers)


def rated(metric: c.Metric | str, **matchers: str) -> str:
    """Return the rate of a counter for the chosen nodes."""
    return f"(rate({of_nodes(metric, **matchers)}[$__rate_interval]) and {WHERE})"


def of_their_runs() -> str:
    """Select what fires for runs that have, or lately had, ranks on the chosen nodes."""
    there = f"group by (run) (last_over_time({of_nodes('node:run:info')}[1h]) and {WHERE})"
    return f"({of_cluster('ALERTS', **FIRES)} and on (run) {there})"


def alerts(**matchers: str) -> str:
    """Select what fires on the chosen nodes."""
    return of_hosts("ALERTS", **FIRES, **matchers)
