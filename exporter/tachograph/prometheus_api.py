"""What a Prometheus knows of our runs, over its HTTP API: for everything that shows, and only for that.

Nothing here waits for long or retries: what shows asks again a moment later. Every failure is one line that says what
to do.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ENVIRONMENT = "PROMETHEUS_URL"
DEFAULT_URL = "http://localhost:9090"
OLDEST = (2, 42)
"""The first version our rules run on: it has `keep_firing_for`."""

MARK = "run:ranks:count"
"""What our rules record for every run in sight: the rule that records it tells our rules from others'."""


class PrometheusError(Exception):
    """Prometheus did not answer, or not as ours must; the text says, in one line, what to do."""


class UnknownRunError(PrometheusError):
    """No such run; the text lists the nearest names."""


@dataclass(frozen=True)
class Series:
    """Labels, and samples as (Unix seconds, value); an instant query gives exactly one."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """Return the last value."""
        return self.samples[-1][1]


def default_url() -> str:
    """Return `$PROMETHEUS_URL`, else where a Prometheus on this machine listens."""
    return os.environ.get(ENVIRONMENT) or DEFAULT_URL


class Prometheus:
    """The Prometheus at a URL. Every method raises PrometheusError."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout

    def instant(self, expression: str, at: float | None = None) -> list[Series]:
        """Return the vector that an expression has at a Unix time, else now."""
        given = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        return [_series(one["metric"], [one["value"]]) for one in self._ask("query", given)["result"]]

    def range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Return the series of an expression between two Unix times, a sample every `step` seconds; gaps stay gaps."""
        given = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return [_series(one["metric"], one["values"]) for one in self._ask("query_range", given)["result"]]

    def runs(self, start: float | None = None, end: float | None = None) -> list[str]:
        """Return the names of the runs seen between two Unix times (Prometheus' own limits else), sorted."""
        given = {"match[]": "tachograph_rank_info"}
        given |= {name: f"{at:.3f}" for name, at in (("start", start), ("end", end)) if at is not None}
        return sorted(self._ask("label/run/values", given, method="GET"))

    def alerting_rules(self) -> list[Mapping[str, Any]]:
        """Return every alerting rule in its order; two may have one name, a page and a ticket."""
        groups = self._ask("rules", {"type": "alert"}, method="GET")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def check(self) -> None:
        """Raise unless this is a Prometheus that our rules run on, with our rules in it."""
        version = str(self._ask("status/buildinfo", {}, method="GET").get("version", ""))
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers and numbers < OLDEST:
            raise PrometheusError(
                f"Prometheus {version} at {self.url} is too old: {'.'.join(map(str, OLDEST))} or later is needed"
            )
        groups = self._ask("rules", {"type": "record"}, method="GET")["groups"]
        if not any(rule["name"] == MARK for group in groups for rule in group["rules"]):
            raise PrometheusError(
                f"Prometheus at {self.url} has none of our rules: add prometheus/rules/*.yml to its rule_files"
            )

    def known(self, run: str, start: float | None = None, end: float | None = None) -> None:
        """Raise UnknownRunError, with the nearest names, unless a run was seen between two Unix times."""
        if run not in (names := self.runs(start, end)):
            raise UnknownRunError(f"no run {run!r} in Prometheus at {self.url}; {nearest(run, names)}")

    def _ask(self, path: str, given: Mapping[str, str], method: str = "POST") -> Any:  # noqa: ANN401  (JSON)
        words = urllib.parse.urlencode(given)
        post = method == "POST"
        url = f"{self.url}/api/v1/{path}" + ("" if post else f"?{words}")
        try:
            with urllib.request.urlopen(url, words.encode() if post else None, self._timeout) as response:
                answer = json.load(response)
            if answer["status"] == "success":
                return answer["data"]
            said = answer.get("error", answer["status"])
        except urllib.error.HTTPError as error:
            said = _said(error)
            if not said:
                raise self._absent(f"it answers {error.code} {error.reason}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._absent(getattr(error, "reason", error)) from error
        raise PrometheusError(f"Prometheus at {self.url} refused: {said}")

    def _absent(self, reason: object) -> PrometheusError:
        return PrometheusError(
            f"no Prometheus at {self.url}: {reason}; give its address with --prometheus or ${ENVIRONMENT}"
        )


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that an alert has of itself, of those of its series ALERTS or ALERTS_FOR_STATE."""
    return {name: text for name, text in labels.items() if name not in ("alertstate", "__name__")}


def nearest(wanted: str, names: list[str], most: int = 5) -> str:
    """Return the names most like the one that was asked for, in words."""
    if not names:
        return "it has no run at all: is an exporter scraped, and does a rank speak to it?"
    like = difflib.get_close_matches(wanted, names, most, 0.4) or [name for name in names if wanted in name][:most]
    shown = like or names[:most]
    more = len(names) - len(shown)
    return f"{'the nearest' if like else 'there'} {'is' if len(shown) == 1 else 'are'} {', '.join(shown)}" + (
        f" ({more} more)" if more > 0 else ""
    )


def _series(labels: Mapping[str, str], samples: list[tuple[float, str]]) -> Series:
    return Series(labels, tuple((float(at), _number(value)) for at, value in samples))


def _number(text: str) -> float:
    return {"+Inf": math.inf, "-Inf": -math.inf}.get(text) or float(text)


def _said(error: urllib.error.HTTPError) -> str:
    """Return what Prometheus says of a request it refuses; nothing where that is not its way of saying it."""
    try:
        return str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
