"""The exporters of a run, found through Prometheus or named, and what they have of it, asked side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from tachograph.blackbox import served
from tachograph.blackbox.served import ServedRun
from tachograph.files.unreadable import UNREADABLE, wrong_form
from tachograph.servers.http_client import HttpError, HttpResponse, ask, without_password
from tachograph.servers.prometheus_api import Prometheus
from tachograph.text.printable import printable

T = TypeVar("T")

AT_A_TIME = 32
REQUEST_SECONDS = 10.0
ADVICE = {
    401: ": give it in ~/.netrc, or as http://user:password@node",
    403: ": it is for the run's owner and the site's readers, on its node, or with a password (docs/web.md)",
}
"""What to do, by the status of an answer."""


class ExporterError(Exception):
    """An exporter did not give what it was asked for; the text says why in a few words."""


class UnknownThereError(ExporterError):
    """The exporter has nothing of the run."""


def found(prometheus: Prometheus, run: str) -> tuple[list[str], list[str]]:
    """Return the exporters that had a rank of a run within the hour, and the nodes whose exporter is no target now.

    Raise PrometheusError, UnknownRunError for a run that Prometheus does not know.
    """
    series = prometheus.instant(served.exporters_query(run))
    if not series:
        prometheus.known(run)
    targets = prometheus.targets()
    return served.exporters_of([one.labels for one in series], [(one.labels, one.url) for one in targets])


def index(exporter: str, run: str) -> ServedRun:
    """Return what an exporter has of a run; raise ExporterError."""
    try:
        return served.read_run(body(exporter, served.index_path(run), served.LARGEST_INDEX))
    except UNREADABLE as error:
        raise ExporterError(f"no index of a tachograph exporter: {printable(wrong_form(error))}") from error


def capture(exporter: str, run: str, *, ras: bool) -> tuple[int, float]:
    """Have an exporter ask its ranks; return how many, and the time by its node's clock; raise ExporterError."""
    said = _asked(exporter, served.capture_path(run, ras=ras), "POST")
    try:
        answer = json.loads(said.body)
        return int(answer["asked"]), float(answer["time"])
    except UNREADABLE as error:
        raise ExporterError("what answers is no tachograph exporter") from error


def body(exporter: str, path: str, most: int) -> bytes:
    """Return what an exporter serves at a path; raise ExporterError."""
    return _asked(exporter, path, most=most).body


def _asked(exporter: str, path: str, method: str = "GET", most: int = served.LARGEST_INDEX) -> HttpResponse:
    try:
        response = ask(exporter + path, REQUEST_SECONDS, method=method, most=most)
    except HttpError as error:
        raise ExporterError(str(error)) from error
    if response.status == 200:
        return response
    if response.status == 404:
        raise UnknownThereError("it has nothing of this run")
    raise ExporterError(f"it answers {response.status} {response.reason}{ADVICE.get(response.status, '')}")


@dataclass
class Asked:
    """The answers of exporters, and why others gave none, by address."""

    runs: dict[str, ServedRun] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    """Those that have nothing of the run."""


def indexes(exporters: Iterable[str], run: str) -> Asked:
    """Return what exporters have of a run."""
    result = Asked()
    for exporter, answer in side_by_side(list(exporters), lambda one: index(one, run)).items():
        if isinstance(answer, UnknownThereError):
            result.without.append(exporter)
        elif isinstance(answer, ExporterError):
            result.failed[exporter] = str(answer)
        else:
            result.runs[exporter] = answer
    return result


def side_by_side(exporters: Sequence[str], work: Callable[[str], T]) -> Mapping[str, T | ExporterError]:
    """Return what `work` returns for each exporter, or the ExporterError that it raises."""

    def one(exporter: str) -> T | ExporterError:
        try:
            return work(exporter)
        except ExporterError as error:
            return error

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(zip(exporters, pool.map(one, exporters), strict=True))


def shown(exporter: str) -> str:
    """Return an address as it may be shown."""
    return without_password(exporter)
