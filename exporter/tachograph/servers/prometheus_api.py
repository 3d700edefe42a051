"""Prometheus' HTTP API, for the commands that show what it has recorded of runs.

Nothing here retries: a view queries again a moment later. Every failure is one line that says what to do.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tachograph.files.unreadable import UNREADABLE
from tachograph.servers.http_client import HttpError, ask, without_password
from tachograph.servers.server_address import known_server_url
from tachograph.text import duration

T = TypeVar("T")

ENVIRONMENT = "PROMETHEUS_URL"
DEFAULT_PORT = 9090
DEFAULT_URL = f"http://localhost:{DEFAULT_PORT}"
OLDEST = (2, 42)
"""The first version that runs our rules: it has `keep_firing_for`."""

LOOKBACK = "90s"
"""For how long a line goes on after its last sample, from Prometheus 2.45 on, without 300 s: rules and scrapes that are
drawn come once a minute at least. The viewer (grafana/preview) and the provisioned data source ask for the same."""
FORM = "application/x-www-form-urlencoded"
MARK = "run:ranks:count"
"""A series that our rules record for every run: a Prometheus that has this rule has our rules."""


class PrometheusError(Exception):
    """Prometheus did not respond, is too old or lacks our rules; the text says in one line what to do."""


class QueryRefusedError(PrometheusError):
    """Prometheus answered that it cannot evaluate a query; others it may."""


class UnknownRunError(PrometheusError):
    """There is no such run; the text lists similar names."""


@dataclass(frozen=True)
class TimeSeries:
    """Labels, and samples as (Unix seconds, value); an instant query returns exactly one sample."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """Return the last value."""
        return self.samples[-1][1]


@dataclass(frozen=True)
class LoadedRule:
    """A rule as Prometheus has it; `health` is ok, err or unknown, which is: not yet evaluated."""

    group: str
    name: str
    query: str
    health: str
    error: str


@dataclass(frozen=True)
class ScrapeTarget:
    """A target of a scrape job; `health` is up, down or unknown, `interval` seconds."""

    labels: Mapping[str, str]
    url: str
    interval: float
    health: str
    error: str


def default_url() -> str:
    """Return `$PROMETHEUS_URL`, else the default address on this machine."""
    return os.environ.get(ENVIRONMENT) or DEFAULT_URL


def quoted(text: str) -> str:
    """Return a string of PromQL."""
    return json.dumps(text, ensure_ascii=False)


class Prometheus:
    """The Prometheus at HOST, HOST:PORT or a URL. Every method raises PrometheusError, as this does for other texts."""

    def __init__(self, address: str, timeout: float = 10.0) -> None:
        try:
            self._address = known_server_url("Prometheus", address, DEFAULT_PORT, f"--prometheus or ${ENVIRONMENT}")
        except ValueError as error:
            raise PrometheusError(str(error)) from error
        self.url = without_password(self._address)
        self._timeout = timeout

    def instant(self, expression: str, at: float | None = None) -> list[TimeSeries]:
        """Return the instant vector of an expression at a Unix time, by default now."""
        given = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        return self._ask("query", given, lambda data: [_series(one, [one["value"]]) for one in data["result"]])

    def range(self, expression: str, start: float, end: float, step: float) -> list[TimeSeries]:
        """Return the series of an expression between two Unix times, with a sample every `step` seconds and gaps."""
        given = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        given["lookback_delta"] = LOOKBACK
        return self._ask("query_range", given, lambda data: [_series(one, one["values"]) for one in data["result"]])

    def samples(self, selector: str, seconds: float, end: float) -> list[TimeSeries]:
        """Return the samples of a series as they were recorded, of so many seconds before a Unix time."""
        given = {"query": f"{selector}[{round(seconds)}s]", "time": f"{end:.3f}"}
        return self._ask("query", given, lambda data: [_series(one, one["values"]) for one in data["result"]])

    def runs(self, start: float | None = None, end: float | None = None) -> list[str]:
        """Return the sorted names of the runs between two Unix times, by default of all times."""
        return self.values("run", "tachograph_rank_info", start, end)

    def values(self, label: str, selector: str, start: float | None = None, end: float | None = None) -> list[str]:
        """Return the sorted values of a label of a series between two Unix times, by default of all times."""
        given = {"match[]": selector}
        given |= {name: f"{at:.3f}" for name, at in (("start", start), ("end", end)) if at is not None}
        return self._ask(f"label/{label}/values", given, _names, method="GET")

    def alerting_rules(self) -> list[Mapping[str, Any]]:
        """Return all alerting rules in order; a page and a ticket may share a name."""
        return self._ask("rules", {"type": "alert"}, _rules, method="GET")

    def version(self) -> str:
        """Return what answers, and its version; raise PrometheusError for a Prometheus too old for our rules.

        Other stores have versions of their own: Mimir gives its name beside it, Thanos counts from 0, and
        VictoriaMetrics gives that of a Prometheus and nothing else.
        """
        build = self._ask("status/buildinfo", {}, dict, method="GET")
        version = str(build.get("version", ""))
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isascii() and part.isdigit())
        if name := build.get("application"):
            return f"{name} {version}"
        if "goVersion" not in build or numbers[:1] == (0,):
            return f"a store with Prometheus' API{version and f', which says {version}'}"
        if numbers and numbers < OLDEST:
            raise PrometheusError(
                f"Prometheus {version} at {self.url} is too old: {'.'.join(map(str, OLDEST))} or later is needed"
            )
        return f"Prometheus {version}"

    def has_recorded(self) -> bool:
        """Return whether it has what our rules recorded within the hour, whoever evaluated them."""
        return bool(self.instant(f"last_over_time({MARK}[1h])"))

    def rules(self) -> list[LoadedRule]:
        """Return every rule, recording and alerting."""
        return self._ask("rules", {}, _loaded, method="GET")

    def targets(self) -> list[ScrapeTarget]:
        """Return the targets of all scrape jobs."""
        return self._ask(
            "targets", {"state": "active"}, lambda data: [_target(one) for one in data["activeTargets"]], method="GET"
        )

    def alertmanagers(self) -> list[str]:
        """Return the URLs to which it posts alerts, one for each Alertmanager."""
        return self._ask(
            "alertmanagers", {}, lambda data: [_text(one["url"]) for one in data["activeAlertmanagers"]], method="GET"
        )

    def check(self) -> None:
        """Raise unless this is a Prometheus of a supported version that has our rules, or a store with their series."""
        self.version()
        try:
            recorded = self._ask("rules", {"type": "record"}, _rules, method="GET")
        except PrometheusError:  # a store evaluates none
            recorded = []
        if not any(rule["name"] == MARK for rule in recorded) and not self.has_recorded():
            raise PrometheusError(
                f"Prometheus at {self.url} has none of our rules: add prometheus/rules/*.yml to its rule_files; or, "
                f"where another one evaluates them, have that write {MARK} and the others here"
            )

    def known(self, run: str, start: float | None = None, end: float | None = None) -> None:
        """Raise UnknownRunError, with similar names, unless Prometheus has a run between two Unix times."""
        if run not in (names := self.runs(start, end)):
            raise UnknownRunError(f"no run {run!r} in Prometheus at {self.url}; {nearest(run, names)}")

    def _ask(self, path: str, given: Mapping[str, str], read: Callable[[Any], T], method: str = "POST") -> T:
        """Return what `read` makes of the data in the response."""
        words = urllib.parse.urlencode(given)
        post = method == "POST"
        url = f"{self._address}/api/v1/{path}" + ("" if post else f"?{words}")
        try:
            response = ask(
                url, self._timeout, method=method, body=words.encode() if post else None, kind=FORM if post else ""
            )
        except HttpError as error:
            raise self._absent(error) from error
        try:
            content = json.loads(response.body)
            if content["status"] == "success":
                return read(content["data"])
            error_text = str(content.get("error", content["status"]))
        except UNREADABLE as error:
            if response.status != 200:
                raise self._absent(f"it responded {response.status} {response.reason}") from error
            raise self._absent("the server there does not speak the Prometheus API") from error
        raise QueryRefusedError(f"Prometheus at {self.url} refused the query: {' '.join(error_text.split())}")

    def _absent(self, reason: object) -> PrometheusError:
        return PrometheusError(
            f"no Prometheus at {self.url}: {reason}; give its address with --prometheus or ${ENVIRONMENT}"
        )


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of an alert, from those of its series ALERTS or ALERTS_FOR_STATE."""
    return {name: text for name, text in labels.items() if name not in ("alertstate", "__name__")}


def similar(wanted: str, names: list[str], most: int = 5) -> list[str]:
    """Return the names most similar to the wanted one, else those that it is a part of."""
    return difflib.get_close_matches(wanted, names, most, 0.4) or [name for name in names if wanted in name][:most]


def nearest(wanted: str, names: list[str], most: int = 5) -> str:
    """Return a clause that lists the names most similar to the wanted one."""
    if not names:
        return "it has no run at all: is the exporter scraped, and is a rank connected to it?"
    like = similar(wanted, names, most)
    shown = like or names[:most]
    more = len(names) - len(shown)
    return f"{'the nearest' if like else 'there'} {'is' if len(shown) == 1 else 'are'} {', '.join(shown)}" + (
        f" ({more} more)" if more > 0 else ""
    )


def _series(one: Mapping[str, Any], samples: list[tuple[float, str]]) -> TimeSeries:
    labels = {_text(name): _text(value) for name, value in one["metric"].items()}
    found = tuple((_instant(at), _number(value)) for at, value in samples)
    if not found:
        raise ValueError("series without a sample")
    return TimeSeries(labels, found)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} instead of a string")
    return value


def _names(found: object) -> list[str]:
    if not isinstance(found, list):
        raise TypeError("not a list of names")
    return sorted(map(_text, found))


def _instant(at: float) -> float:
    """Return a Unix time; raise ValueError after the year 4147, which no calendar needs."""
    if not 0 <= float(at) <= 2**36:
        raise ValueError("not a time")
    return float(at)


def _number(text: str) -> float:
    return {"+Inf": math.inf, "-Inf": -math.inf}.get(text) or float(text)


def _loaded(data: Mapping[str, Any]) -> list[LoadedRule]:
    return [
        LoadedRule(
            _text(group["name"]), _text(rule["name"]), _text(rule["query"]), _text(rule["health"]),
            " ".join(str(rule.get("lastError", "")).split()),
        )
        for group in data["groups"]
        for rule in group["rules"]
    ]  # fmt: skip


def _target(one: Mapping[str, Any]) -> ScrapeTarget:
    labels = {_text(name): _text(value) for name, value in one["labels"].items()}
    interval = duration.parse(_text(one["scrapeInterval"]))
    return ScrapeTarget(labels, _text(one["scrapeUrl"]), interval, _text(one["health"]), str(one.get("lastError", "")))


def _rules(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rules of all groups."""
    return [rule for group in data["groups"] for rule in group["rules"] if _text(rule["name"])]
