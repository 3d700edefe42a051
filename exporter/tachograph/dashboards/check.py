"""Checks the Prometheus and the selected run, so that a view says why it is empty."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from tachograph.servers.prometheus_api import Prometheus, PrometheusError, nearest, similar


@dataclass(frozen=True)
class ViewProblem:
    """Why there is nothing to show (prometheus, run, range), or why much may be missing (rules, empty).

    `about`: prometheus (no response), run (no such run), range (no data in this time range), rules (too old, or without
    our rules: data that a store behind it has recorded can still be shown), empty (no run at all).
    """

    about: str
    text: str
    nearest: list[str] = field(default_factory=list)


def problem(prometheus: Prometheus, run: str | None, start: float, end: float) -> ViewProblem | None:
    """Return the most serious problem, or None."""
    rules_problem = ""
    try:
        prometheus.check()
    except PrometheusError as error:
        rules_problem = str(error)
    try:
        then = prometheus.runs(start, end)
        ever = then if run in then or (run is None and then) else prometheus.runs()
    except PrometheusError as error:
        return ViewProblem("prometheus", rules_problem or str(error))
    if run is not None and run not in then:
        return _absent(prometheus.url, run, ever)
    if rules_problem:
        return ViewProblem("rules", rules_problem)
    if not then:
        where = "No run in this time range" if ever else prometheus.url
        return ViewProblem("empty", f"{where}: {nearest('', ever)}")
    return None


def _absent(url: str, run: str, ever: list[str]) -> ViewProblem:
    if run in ever:
        return ViewProblem("range", f"Run {run!r} has no data in this time range.")
    return ViewProblem(
        "run", f"There is no run {run!r} in Prometheus at {url}; {nearest(run, ever)}.", similar(run, ever) or ever[:5]
    )


def check(prometheus: Prometheus, run: str | None, start: float, end: float) -> dict[str, object]:
    """Return the problem in the form that the page reads."""
    found = problem(prometheus, run, start, end)
    return {"prometheus": prometheus.url, "problem": asdict(found) if found else None}
