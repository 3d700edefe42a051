"""A node, read from its exporter: pages of /metrics, and the rates between them."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict, deque
from dataclasses import replace
from urllib.parse import urlsplit

from tachograph.catalog import index as c
from tachograph.http_client import UNREADABLE, HttpError, ask, without_password
from tachograph.top import node_gpus, node_ranks
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.overview import CONDITIONS, Overview, RunSummary, SourceError, misuse_note
from tachograph.top.rates import CounterHistory, PageCounters

DEFAULT_PORT = 10024
"""Where an exporter listens by default."""

EXPORTER_ENVIRONMENT = "TACHOGRAPH_EXPORTER_URL"
DEFAULT_EXPORTER = f"http://localhost:{DEFAULT_PORT}"

MOST_BYTES = 16 << 20
"""Of a page; the largest of an exporter, 10,000 samples, is a megabyte."""

HISTORY = 300
"""Pages that a sparkline reaches back."""


def default_exporter() -> str:
    """Return `$TACHOGRAPH_EXPORTER_URL`, else the exporter of this node."""
    return os.environ.get(EXPORTER_ENVIRONMENT) or DEFAULT_EXPORTER


def exporter_url(text: str) -> str:
    """Return the URL of a page from what a person types: a node, node:port, or a URL."""
    given = urlsplit(text if "://" in text else f"http://{text}")
    port = "" if given.port or given.scheme == "https" else f":{DEFAULT_PORT}"
    return f"{given.scheme}://{given.netloc}{port}{given.path.rstrip('/') or '/metrics'}"


def exporter_page(address: str, timeout: float = 5.0) -> ExporterPage:
    """Return the page at a URL; raise SourceError unless it is an exporter's."""
    url = without_password(address)
    try:
        answer = ask(address, timeout, most=MOST_BYTES)
        if answer.status != 200:
            raise HttpError(f"it answers {answer.status} {answer.reason}")
    except HttpError as error:
        raise SourceError(
            f"no exporter at {url.removesuffix('/metrics')}: {error}; is `tachograph exporter` running "
            "there? --exporter names another"
        ) from error
    try:
        page = ExporterPage(answer.body.decode())
    except UNREADABLE as error:
        raise _not_ours(url, f"{error!r:.200}") from error
    if not page.of(c.EXPORTER_INFO):
        raise _not_ours(url, f"it has no {c.EXPORTER_INFO.name}")
    return page


def _not_ours(url: str, reason: str) -> SourceError:
    return SourceError(f"{url} is not a page of a tachograph exporter: {reason}; --exporter names another")


class NodeSource:
    """The exporter at a URL; `fetch` raises SourceError."""

    view = "node"
    fetches_needed = 2

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        """Raise SourceError for what cannot be an address."""
        try:
            self._address = exporter_url(url)
        except ValueError as error:
            raise SourceError(f"--exporter {url}: {error}; expected a node, node:port or a URL") from error
        self.url = without_password(self._address)
        self._timeout = timeout
        self._counters = CounterHistory()
        self._history: dict[str, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=HISTORY))

    def fetch(self, wanted: str = "") -> Overview:
        """Return the node as it is now; `wanted` is for sources that do not fetch all ranks."""
        return self.overview(self.page(), time.time())

    def overview(self, page: ExporterPage, now: float) -> Overview:
        """Return the node as a page shows it, with rates since the pages before; raise SourceError."""
        try:
            return self._overview(page, now)
        except UNREADABLE as error:
            raise _not_ours(self.url, f"{error!r:.200}") from error

    def page(self) -> ExporterPage:
        """Return the exporter's page; raise SourceError."""
        return exporter_page(self._address, self._timeout)

    def _overview(self, page: ExporterPage, now: float) -> Overview:
        infos = node_ranks.infos(page)
        self._counters.add(PageCounters(time.monotonic(), node_ranks.counters(page, infos), node_gpus.counters(page)))
        ranks = node_ranks.ranks(page, infos, self._counters, now)
        runs = [self._with_history(run) for run in node_ranks.runs(page, infos, self._counters, ranks, now)]
        return Overview(
            view=self.view,
            source=self.url,
            at=now,
            runs=tuple(sorted(runs, key=lambda run: CONDITIONS.index(run.state))),
            ranks=tuple(sorted(ranks, key=lambda rank: rank.badness, reverse=True)),
            gpus=node_gpus.gpus(page, self._counters, ranks),
            ranks_in_all=len(ranks),
            notes=(*_notes(page), *_misuses(page)),
        )

    def _with_history(self, run: RunSummary) -> RunSummary:
        history = self._history[run.name]
        history.append((math.nan if run.loss is None else run.loss, math.nan if run.mfu is None else run.mfu))
        return replace(
            run, loss_history=tuple(loss for loss, _ in history), mfu_history=tuple(mfu for _, mfu in history)
        )


def _notes(page: ExporterPage) -> tuple[str, ...]:
    """Return why the page shows no GPUs, or no ranks."""
    reasons = {s.labels["collector"]: s.labels["reason"] for s in page.of(c.COLLECTOR_UNAVAILABLE) if s.value == 1}
    return tuple(
        f"{words} cannot be read: {reasons[collector].replace('_', ' ')}"
        for collector, words in (("gpu", "GPUs"), ("ranks", "ranks"))
        if collector in reasons
    )


def _misuses(page: ExporterPage) -> tuple[str, ...]:
    """Return a note on each run whose script misuses its recorder."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in page.of(c.TRAIN_MISUSE):
        counts[sample.labels["run"]][sample.labels["kind"]] += int(sample.value)
    return tuple(misuse_note(run, kinds) for run, kinds in sorted(counts.items()))
