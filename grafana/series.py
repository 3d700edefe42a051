"""Which series a dashboard asks for: those of the chosen cluster, run, nodes and ranks.

`cluster` is a label that Prometheus or a remote store adds, or nobody: where nobody does, its variable matches all.
"""

from __future__ import annotations

from collections.abc import Callable

from tachograph.catalog import index as c

CLUSTER = {"cluster": "$cluster"}
RUNS = "run:ranks:count"
"""Recorded once for each run, and only while the run is in sight: what lists of runs are made of."""


def pick(metric: c.Metric | str, **matchers: str) -> str:
    """Return a selector by regular expressions; a value that begins with ! is what the label must not match."""
    name = metric if isinstance(metric, str) else metric.name
    terms = [f'{label}!~"{text[1:]}"' if text[:1] == "!" else f'{label}=~"{text}"' for label, text in matchers.items()]
    return f"{name}{{{','.join(terms)}}}"


def of_cluster(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for everything in the chosen cluster."""
    return pick(metric, **CLUSTER, **matchers)


def of_run(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for the whole run."""
    return of_cluster(metric, **matchers).replace("{", '{run="$run",', 1)


def stepping(series: str) -> str:
    """Return a series without the time in which the run makes no step, when the last one's figures are outdated."""
    return f"({series} unless on () {of_run('run:overdue_seconds:min')})"


def own(vector: str) -> str:
    """Return ranks' series without those of ranks that have gone on elsewhere."""
    moved = f"({of_run(c.RANK_UP)} == 0 and on (run, rank) {of_run(c.RANK_UP)} == 1)"
    return _without(vector, moved)


def not_over(vector: str) -> str:
    """Return ranks' series without those of ranks that have ended."""
    return _without(vector, of_run(c.RANK_STATE, state="dead|failed|finished") + " == 1")


def _without(vector: str, others: str) -> str:
    return f"({vector} unless on (run, rank, instance) {others})"


def of_ranks(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for the chosen nodes and ranks of the run."""
    return of_run(metric, instance="$instance", rank="$rank", **matchers)


ETHERNET = "(en(o|P|p|s|x)|eth|ib|hsn|rdma|roce).*"
"""The devices of node_exporter that are hardware."""


def of_nodes(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for the chosen nodes, whatever runs there."""
    return of_cluster(metric, instance="$instance", **matchers)


def of_chosen_ranks() -> str:
    """Match the nodes on which chosen ranks are, or ended."""
    return f"on (instance) group by (instance) ({own(of_ranks(c.RANK_INFO))})"


def of_gpus(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for every GPU of the nodes on which chosen ranks are, or ended, also those that no rank holds."""
    return f"({of_nodes(metric, **matchers)} and {of_chosen_ranks()})"


def host_rate(where: str, counter: str, **matchers: str) -> str:
    """Return the rate of one of node_exporter's counters, of each node that `where` matches."""
    return f"(sum by (instance) (rate({of_nodes(counter, **matchers)}[$__rate_interval])) and {where})"


def disks_used(where: str) -> str:
    """Return the share of each file system in use that can fill up; the same may be mounted more than once."""
    free, size, readonly = (of_nodes(f"node_filesystem_{name}") for name in ("avail_bytes", "size_bytes", "readonly"))
    used = f"1 - {free} / ({size} > 0) unless on (instance, device, mountpoint) {readonly} == 1"
    return f"(max by (instance, mountpoint) ({used}) and {where})"


def slows_down_at(gpus: Callable[..., str]) -> str:
    """Return the temperatures at which the chosen GPUs slow down: as reported, otherwise from the headroom."""
    told = gpus(c.GPU_TEMPERATURE_THRESHOLD, threshold="slowdown")
    left = gpus(c.GPU_TEMPERATURE_MARGIN)
    return f"({told} or {gpus(c.GPU_TEMPERATURE, sensor='gpu')} + ignoring (sensor) {left})"


def headroom(gpus: Callable[..., str]) -> str:
    """Return by how many degrees the chosen GPUs are below that: as reported, otherwise from the threshold."""
    told = gpus(c.GPU_TEMPERATURE_THRESHOLD, threshold="slowdown")
    warm = gpus(c.GPU_TEMPERATURE, sensor="gpu")
    return f"({gpus(c.GPU_TEMPERATURE_MARGIN)} or {told} - ignoring (threshold, sensor) {warm})"


HERE = f"on (instance) group by (instance) (last_over_time({of_run(c.RUN_RANKS)}[1h]))"
"""Ends a vector: `and` only on the nodes where ranks of the run are, or lately were."""


def firing(over: str = "", **matchers: str) -> str:
    """Return the alerts of the run that fire, and those that know no run: of its nodes and GPUs, and of slow storage.

    `over`: within that time.
    """
    asked = {"alertstate": "firing", "severity": "critical|warning|info"} | matchers
    found = [
        of_run("ALERTS", **asked),
        of_nodes_alone("ALERTS", **asked),
        of_nodes_alone("ALERTS", **asked | {"alertname": "StorageSlow"}),
        of_run("run:shared_stall_seconds:max"),
    ]
    mine, nodes, storage, stalled = (f"last_over_time({each}[{over}])" for each in found) if over else found
    return f"({mine} or {nodes} and {HERE} or {storage} and on () {stalled})"


def of_nodes_alone(name: str, **matchers: str) -> str:
    """Select alerts, of the whole cluster, that know no run."""
    return of_cluster(name, **matchers).replace("{", '{run="",', 1)


FIRING = firing()
