"""Faults of the monitoring itself: scrapes, Prometheus, and the exporters of nodes that train on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tachograph_lab.scenario import values
from tachograph_lab.scenario.faults.fault import Fault
from tachograph_lab.scenario.values import optional, place, places, size


@dataclass(frozen=True, kw_only=True)
class ScrapeFailure(Fault):
    """One scrape of a node's exporter fails: once, or again every `every` seconds."""

    word = "scrape_failure"
    sets = ("scrape failure",)
    node: int = place("node")
    every: float | None = optional(values.some_time, None)


@dataclass(frozen=True, kw_only=True)
class ScrapeLost(Fault):
    """One scrape of each of these nodes fails: the first from `at` on."""

    word = "scrape_lost"
    sets = ("scrape failure",)
    lasting = False
    nodes: tuple[int, ...] = places("nodes")


@dataclass(frozen=True, kw_only=True)
class Vanish(Fault):
    """Service discovery drops the exporters of these nodes: Prometheus does not scrape them, nor miss them."""

    word = "vanish"
    sets = ("discovery",)
    nodes: tuple[int, ...] = places("nodes")


@dataclass(frozen=True, kw_only=True)
class DuplicateTarget(Fault):
    """A second job of Prometheus scrapes these nodes' exporters, too; with `port`, under an instance of its own."""

    word = "duplicate_target"
    sets = ("second target",)
    nodes: tuple[int, ...] = places("nodes")
    job: str = optional(values.text, "kubernetes-pods")
    port: int | None = optional(values.count, None)

    def instance(self, node: str) -> str:
        """Return the instance under which the second job has a node's exporter."""
        return node if self.port is None else f"{node}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Rollout(Fault):
    """The exporters of these nodes are replaced one after the other, `between` apart, each gone for `each`."""

    word = "rollout"
    sets = ("reach",)
    lasting = False
    nodes: tuple[int, ...] = places("nodes")
    each: float = size(values.some_time)
    between: float = size(values.duration)

    @property
    def until(self) -> float:
        """The second at which the last new exporter is up."""
        return self.at + (len(self.nodes) - 1) * self.between + self.each

    def downs(self) -> Iterator[ExporterDown]:
        """Yield it as what happens to each node's exporter."""
        for number, node in enumerate(self.nodes):
            yield ExporterDown(at=self.at + number * self.between, lasts=self.each, node=node)


@dataclass(frozen=True, kw_only=True)
class PrometheusRestart(Fault):
    """Prometheus starts anew, without its data."""

    word = "prometheus_restart"
    sets = ("Prometheus",)
    lasting = False

    @property
    def until(self) -> float:
        """The second at which it is over; another may follow."""
        return self.at


@dataclass(frozen=True, kw_only=True)
class PrometheusAway(Fault):
    """Prometheus is stopped, and returns after `for` with its data; in virtual time without."""

    word = "prometheus_away"
    sets = ("Prometheus",)
    one_of = ("for",)


@dataclass(frozen=True, kw_only=True)
class ExporterDown(Fault):
    """A node's exporter is killed while its ranks train; after `for` a new one starts, and the ranks reconnect."""

    word = "exporter_down"
    sets = ("reach",)
    node: int = place("node")


@dataclass(frozen=True, kw_only=True)
class ScrapeBlocked(Fault):
    """Prometheus cannot reach a node; on the node everything runs as before."""

    word = "scrape_blocked"
    sets = ("reach",)
    node: int = place("node")
