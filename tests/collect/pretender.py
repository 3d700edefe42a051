"""Something that answers as an exporter, or a Prometheus, might."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tachograph.blackbox import served
from tachograph.blackbox.served import ServedBox, ServedRank, ServedRun

NOBODY = "127.0.0.1:1"
"""An address at which nothing listens."""


class Pretender:
    """Something that answers as an exporter, or a Prometheus, might: a body and a status for each path."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.logins: list[str] = []
        pretender = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                path = self.path.partition("?")[0]
                pretender.asked.append(f"{self.command} {self.path} {self.rfile.read(length).decode()}".strip())
                pretender.logins.append(self.headers.get("Authorization", ""))
                status, body = pretender.answers.get(path, (404, b""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - the library's name

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def has(self, run: str, *boxes: ServedBox, texts: dict[int, bytes] | None = None, **over: Any) -> None:
        """Answer as an exporter with these boxes."""
        ranks = tuple(ServedRank(one.rank, "running", 3, "data", 1.0, "0", {}) for one in boxes)
        index = ServedRun(run, "node-9", 100.0, len(boxes), boxes, ranks).as_json()
        self.answers[served.index_path(run)] = (200, json.dumps({**json.loads(index), **over}).encode())
        for rank, text in (texts or {}).items():
            self.answers[served.box_path(run, 0, rank)] = (200, text)

    def knows(self, run: str, *exporters: str) -> None:
        """Answer as a Prometheus that scrapes these exporters, each of which had a rank of the run."""
        labels = [{"job": "tachograph", "instance": f"node-{number}"} for number in range(len(exporters))]
        found = [{"metric": one, "value": [1.0, "1"]} for one in labels]
        targets = [
            {"labels": one, "scrapeUrl": f"{url}/metrics", "scrapeInterval": "5s", "health": "up"}
            for one, url in zip(labels, exporters, strict=True)
        ]
        self.answers["/api/v1/query"] = (200, json.dumps({"status": "success", "data": {"result": found}}).encode())
        self.answers["/api/v1/targets"] = (
            200, json.dumps({"status": "success", "data": {"activeTargets": targets}}).encode(),
        )  # fmt: skip
        self.answers["/api/v1/label/run/values"] = (200, json.dumps({"status": "success", "data": [run]}).encode())


@pytest.fixture
def pretender() -> Iterator[Pretender]:
    with closing(Pretender()) as made:
        yield made


@pytest.fixture
def other() -> Iterator[Pretender]:
    with closing(Pretender()) as made:
        yield made
