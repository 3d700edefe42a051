"""Asking Prometheus for one picture: what was asked is shown with it, and a refusal costs that picture alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tachograph.prometheus_api import Prometheus, PrometheusError, Series
from tachograph.report.window import Window

TIMEOUT = 60.0
"""Seconds for one answer: nobody waits at a screen for each, and a query may look at 16,384 ranks over hours."""


def held(selector: str) -> str:
    """Return what a selector has at a moment, or had since the step before.

    The first part alone would miss what came and went; the second, what is recorded less often than once a step.
    """
    return f"({selector} or last_over_time({selector}[$step]))"


def matcher(run: str) -> str:
    """Return the matcher of a run, whatever its name holds."""
    return f"run={json.dumps(run, ensure_ascii=False)}"


@dataclass
class Asking:
    """The questions of one picture over a run and a window.

    In a question `$run` is the run's matcher, `$window`, `$step` and `$coarse` are lengths, `$nodes` the run's nodes.
    """

    prometheus: Prometheus
    run: str
    window: Window
    asked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def fill(self, question: str, **more: str) -> str:
        """Return a question as Prometheus is asked it."""
        # Every few minutes is often enough: 2,048 nodes have seven million samples in two hours.
        nodes = "group by (instance) (last_over_time(node:run:info{$run}[$window:$coarse] @ end()))"
        values = {
            "run": matcher(self.run),
            "window": f"{self.window.seconds}s",
            "step": f"{self.window.step}s",
            "coarse": f"{self.window.coarse}s",
            # Scrapes are 5 s apart: what is rated needs a few of them.
            "rated": f"{max(self.window.coarse, 60)}s",
            **more,
        }
        return re.sub(r"\$(\w+)", lambda found: values[found[1]], question.replace("$nodes", nodes))

    def range(self, question: str, *, coarse: bool = False, **more: str) -> list[Series]:
        """Return the series of a question over the window, none where Prometheus refuses."""
        expression, step = self.fill(question, **more), self.window.coarse if coarse else self.window.step
        self.asked.append(f"{expression}  # every {step} s")
        return self._ask(lambda: self.prometheus.range(expression, self.window.start, self.window.end, step))

    def at_end(self, question: str, **more: str) -> list[Series]:
        """Return the vector of a question at the end of the window, none where Prometheus refuses."""
        expression = self.fill(question, **more)
        self.asked.append(f"{expression}  # at the end")
        return self._ask(lambda: self.prometheus.instant(expression, self.window.end))

    def line(self, series: str, edge: str = "avg") -> list[tuple[float, float]]:
        """Return the mean (`min`, `max`) of a recorded series of the run over each step."""
        found = self.range(f"{edge}_over_time({series}{{$run}}[$step]) or {series}{{$run}}")
        return sorted(sample for each in found for sample in each.samples)

    def number(self, question: str, **more: str) -> float | None:
        """Return the value of a question that has one series at most, at the end of the window."""
        found = self.at_end(question, **more)
        return found[0].value if found else None

    def _ask(self, ask: Callable[[], list[Series]]) -> list[Series]:
        try:
            return ask()
        except PrometheusError as error:
            self.refused.append(str(error))
            return []
