"""The queries behind one section of the page, which lists them; a query that is refused costs this section only."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tachograph.report.window import Window
from tachograph.servers.prometheus_api import LOOKBACK, Prometheus, PrometheusError, TimeSeries, quoted

TIMEOUT = 60.0
"""Seconds per query: nobody waits at a screen, and a query may read 16,384 ranks over hours."""


def held(selector: str) -> str:
    """Return the expression for what a selector matches at a moment, or matched since the step before.

    The first part alone would miss what came and went; the second, what is recorded less often than once a step.
    """
    return f"({selector} or last_over_time({selector}[$step]))"


def stepping(expression: str) -> str:
    """Return an expression without the time in which the run makes no step: what the last one took is no news then."""
    return f"({expression}) unless on () run:overdue_seconds:min{{$run}}"


def matcher(run: str) -> str:
    """Return the label matcher of a run, with any character in its name."""
    return f"run={quoted(run)}"


@dataclass
class SectionQueries:
    """The queries of one section of the page, over a run and a window.

    In an expression `$run` is the run's matcher, `$window`, `$step` and `$coarse` are durations, `$nodes` the run's
    nodes.
    """

    prometheus: Prometheus
    run: str
    window: Window
    asked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def fill(self, template: str, **more: str) -> str:
        """Return an expression with its variables replaced."""
        # Every few minutes is often enough: 2,048 nodes have seven million samples in two hours.
        nodes = "group by (instance) (last_over_time(node:run:info{$run}[$window:$coarse] @ end()))"
        values = {
            "run": matcher(self.run),
            "window": f"{self.window.seconds}s",
            "step": f"{self.window.step}s",
            "coarse": f"{self.window.coarse}s",
            **more,
        }
        return re.sub(r"\$(\w+)", lambda found: values[found[1]], template.replace("$nodes", nodes))

    def range(self, template: str, *, coarse: bool = False, **more: str) -> list[TimeSeries]:
        """Return the series of an expression over the window, none if Prometheus refuses the query."""
        expression, step = self.fill(template, **more), self.window.coarse if coarse else self.window.step
        self.asked.append(f"{expression}  # every {step} s")
        return self._ask(lambda: self.prometheus.range(expression, self.window.start, self.window.end, step))

    def at_end(self, template: str, **more: str) -> list[TimeSeries]:
        """Return the vector of an expression at the end of the window, none if Prometheus refuses the query."""
        expression = self.fill(template, **more)
        self.asked.append(f"{expression}  # at the end")
        return self._ask(lambda: self.prometheus.instant(expression, self.window.end))

    def line(self, series: str, edge: str = "avg", *, in_hangs: bool = True) -> list[tuple[float, float]]:
        """Return the mean (`min`, `max`) of a recorded series of the run over each step, perhaps without its hangs."""
        asked = f"{edge}_over_time({series}{{$run}}[$step]) or last_over_time({series}{{$run}}[{LOOKBACK}])"
        found = self.range(asked if in_hangs else stepping(asked))
        return sorted(sample for each in found for sample in each.samples)

    def number(self, template: str, **more: str) -> float | None:
        """Return the value of an expression with at most one series, at the end of the window."""
        found = self.at_end(template, **more)
        return found[0].value if found else None

    def _ask(self, ask: Callable[[], list[TimeSeries]]) -> list[TimeSeries]:
        try:
            return ask()
        except PrometheusError as error:
            self.refused.append(str(error))
            return []
