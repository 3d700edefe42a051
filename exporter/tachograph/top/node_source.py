"""A node, read from its exporter: what it concludes about its ranks and GPUs (`/api/node`, see docs/web.md)."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict, deque
from dataclasses import replace

from tachograph.catalog import index as c
from tachograph.diagnosis import OLD_SECONDS
from tachograph.files.unreadable import UNREADABLE
from tachograph.servers.http_client import HttpError, ask, without_password
from tachograph.servers.server_address import DEFAULT_PORT, exporter_url
from tachograph.top import node_rows
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.node_rows import Said
from tachograph.top.overview import CONDITIONS, Overview, RunSummary, SourceError

EXPORTER_ENVIRONMENT = "TACHOGRAPH_EXPORTER_URL"
DEFAULT_EXPORTER = f"http://localhost:{DEFAULT_PORT}"

MOST_BYTES = 16 << 20
"""Of a page; the largest of an exporter, 10,000 samples, is a megabyte."""

HISTORY, KEPT = 300, 10
"""Answers that a sparkline reaches back, and that a rate is taken over: 20 s, where one is read every 2 s."""

JUDGEMENT_PATH, JUDGEMENT_VERSION = "/api/node", 1


def default_exporter() -> str:
    """Return `$TACHOGRAPH_EXPORTER_URL`, else the exporter of this node."""
    return os.environ.get(EXPORTER_ENVIRONMENT) or DEFAULT_EXPORTER


def exporter_page(address: str, timeout: float = 5.0) -> ExporterPage:
    """Return the page at a URL; raise SourceError unless it is an exporter's."""
    try:
        page = ExporterPage(_body(address, timeout).decode())
        if not page.of(c.EXPORTER_INFO):
            raise ValueError(f"it has no {c.EXPORTER_INFO.name}")
    except UNREADABLE as error:
        raise _not_ours(address, error) from error
    return page


def _body(address: str, timeout: float) -> bytes:
    try:
        answer = ask(address, timeout, most=MOST_BYTES)
        if answer.status != 200:
            raise HttpError(f"it answers {answer.status} {answer.reason}")
    except HttpError as error:
        raise SourceError(
            f"no exporter at {_shown(address)}: {error}; is `tachograph exporter` running there, in this version? "
            "--exporter names another"
        ) from error
    return answer.body


def _shown(address: str) -> str:
    return without_password(address).removesuffix("/metrics").removesuffix(JUDGEMENT_PATH)


def _not_ours(address: str, error: Exception) -> SourceError:
    said = str(error) if type(error) is ValueError else repr(error)
    return SourceError(
        f"{without_password(address)} is not an answer from a tachograph exporter: {said:.200}; "
        "--exporter names another"
    )


def _urgency(run: RunSummary) -> tuple[bool, int]:
    """Return the place of a run: those that ended a while ago come after what runs here now."""
    lives = any(run.ranks.get(state) for state in c.ALIVE)
    return not lives and (run.progress_seconds or 0.0) > OLD_SECONDS, CONDITIONS.index(run.state)


class NodeSource:
    """The exporter at a URL; `fetch` raises SourceError."""

    view = "node"
    fetches_needed = 2

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        """Raise SourceError for what cannot be an address."""
        try:
            self._address = exporter_url(url).removesuffix("/metrics") + JUDGEMENT_PATH
        except ValueError as error:
            raise SourceError(f"--exporter {url}: {error}; expected a node, node:port or a URL") from error
        self._timeout = timeout
        self._answers: deque[Said] = deque(maxlen=KEPT)
        self._history: dict[str, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=HISTORY))

    def fetch(self, wanted: str = "") -> Overview:
        """Return the node as it is now; `wanted` is for sources that do not fetch all ranks."""
        try:
            judged = json.loads(_body(self._address, self._timeout))
            if judged["version"] != JUDGEMENT_VERSION:
                raise ValueError(f"version {judged['version']}")
            return self._overview(judged)
        except UNREADABLE as error:
            raise _not_ours(self._address, error) from error

    def _overview(self, judged: Said) -> Overview:
        before = self._answers[0] if self._answers else judged
        seconds = judged["time"] - before["time"]
        runs = [node_rows.run(each, before) for each in judged["runs"]]
        ranks = [node_rows.rank(str(run["run"]), each) for run in judged["runs"] for each in run["ranks"]]
        gpus = [node_rows.gpu(each, ranks, before, seconds) for each in judged["gpus"]]
        blind = judged["unreadable"]
        self._answers.append(judged)
        return Overview(
            view=self.view,
            source=_shown(self._address),
            at=float(judged["time"]),
            runs=tuple(sorted(map(self._with_history, runs), key=_urgency)),
            ranks=tuple(sorted(ranks, key=lambda rank: rank.badness, reverse=True)),
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.badness, reverse=True)),
            ranks_in_all=len(ranks),
            problems=tuple(node_rows.trouble(each) for each in judged["problems"]),
            notes=(f"GPUs cannot be read: {blind}",) if blind else (),
        )

    def _with_history(self, run: RunSummary) -> RunSummary:
        history = self._history[run.name]
        history.append((math.nan if run.loss is None else run.loss, math.nan if run.mfu is None else run.mfu))
        return replace(
            run, loss_history=tuple(loss for loss, _ in history), mfu_history=tuple(mfu for _, mfu in history)
        )
