"""What is wrong with the Prometheus, or with the run that was asked for, in words: no view is ever just empty."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, field

from tachograph.prometheus_api import Prometheus, PrometheusError, nearest

SHOWN = 5


@dataclass(frozen=True)
class Problem:
    """What is wrong: there is nothing to show (prometheus, run, range), or what is shown may lack much (rules, empty).

    `about`: prometheus (none answers), run (none of that name), range (not at that time), rules (it is old, or has none
    of our rules: what a store behind it has recorded can be shown all the same), empty (no run at all).
    """

    about: str
    text: str
    nearest: list[str] = field(default_factory=list)


def problem(prometheus: Prometheus, run: str | None, start: float, end: float) -> Problem | None:
    """Return the worst that is wrong, or None."""
    doubt = ""
    try:
        prometheus.check()
    except PrometheusError as error:
        doubt = str(error)
    try:
        then = prometheus.runs(start, end)
        ever = then if run in then or (run is None and then) else prometheus.runs()
    except PrometheusError as error:
        return Problem("prometheus", doubt or str(error))
    if run is not None and run not in then:
        return _absent(prometheus.url, run, ever)
    if doubt:
        return Problem("rules", doubt)
    if not then:
        where = "No run in this time range" if ever else prometheus.url
        return Problem("empty", f"{where}: {nearest('', ever)}")
    return None


def _absent(url: str, run: str, ever: list[str]) -> Problem:
    if run in ever:
        return Problem("range", f"Run {run!r} has nothing in this time range.")
    like = difflib.get_close_matches(run, ever, SHOWN, 0.4) or [name for name in ever if run in name] or ever
    return Problem("run", f"There is no run {run!r} in Prometheus at {url}; {nearest(run, ever)}.", like[:SHOWN])


def report(prometheus: Prometheus, run: str | None, start: float, end: float) -> dict[str, object]:
    """Return the check as the page reads it."""
    found = problem(prometheus, run, start, end)
    return {"prometheus": prometheus.url, "problem": asdict(found) if found else None}
