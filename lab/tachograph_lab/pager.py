"""A pager: a webhook receiver for Alertmanager that keeps every notification and when it arrived.

`python -m tachograph_lab.pager PORT FILE` appends each page to FILE as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FIRING, RESOLVED = "firing", "resolved"


@dataclass(frozen=True)
class PagedAlert:
    """An alert received as firing or resolved: `receiver` is the path it was sent to, `time` Unix seconds."""

    time: float
    receiver: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    fingerprint: str
    started: str

    @property
    def alert(self) -> str:
        """The alert's name."""
        return self.labels.get("alertname", "")

    @property
    def critical(self) -> bool:
        """Whether it pages a person."""
        return self.labels.get("severity") == "critical"


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    """Alertmanager opens a connection per group, many at once; the default is 5."""


class Pager:
    """Receives notifications on an address of this machine, from its creation until `close`; a context manager."""

    def __init__(
        self, port: int = 0, record: Callable[[PagedAlert], None] | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        self._record = record
        self._host = host
        self._pages: list[PagedAlert] = []
        self._known: set[tuple[str, str, str, str]] = set()
        self._sent: Counter[tuple[str, str]] = Counter()
        self._changed = threading.Condition()
        self._server = _Server((host, port), self._request_class())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="pager", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL for notifications; the path below it names the receiver."""
        return f"http://{self._host}:{self.port}"

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._server.server_address[1])

    def pages(self) -> list[PagedAlert]:
        """Return every alert received, oldest first; repeated notifications of an alert count once."""
        with self._changed:
            return list(self._pages)

    def times_sent(self, alert: str, status: str = FIRING) -> int:
        """Return how many notifications had an alert, repeated ones and those of several Alertmanagers included."""
        with self._changed:
            return self._sent[alert, status]

    def wait_for(self, wanted: Callable[[PagedAlert], bool], seconds: float, after: float = 0.0) -> PagedAlert | None:
        """Return the first wanted alert received after Unix time `after`, None if `seconds` pass first."""

        def found() -> PagedAlert | None:
            return next((page for page in self._pages if page.time > after and wanted(page)), None)

        with self._changed:
            return self._changed.wait_for(found, seconds)

    def accept(self, receiver: str, notification: Mapping[str, Any]) -> None:
        """Accept a webhook notification (Alertmanager's version 4 format): a group, not all of which need be new."""
        now = time.time()
        with self._changed:
            self._sent.update({(each["labels"]["alertname"], each["status"]) for each in notification["alerts"]})
            for alert in notification["alerts"]:
                page = PagedAlert(
                    time=now,
                    receiver=receiver,
                    status=alert["status"],
                    labels=alert["labels"],
                    annotations=alert["annotations"],
                    fingerprint=alert["fingerprint"],
                    started=alert["startsAt"],
                )
                key = (receiver, page.fingerprint, page.started, page.status)
                if key not in self._known:
                    self._known.add(key)
                    self._pages.append(page)
                    if self._record:
                        self._record(page)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop receiving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Pager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request_class(self) -> type[BaseHTTPRequestHandler]:
        pager = self

        class Request(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    pager.accept(self.path.strip("/"), json.loads(body))
                except (ValueError, KeyError, TypeError) as error:
                    self.send_error(400, f"not a notification: {error!r}")
                    return
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing: `pages` has everything received."""

        return Request


def main() -> None:
    """Append alerts to a file until the process is stopped."""
    port, path = int(sys.argv[1]), Path(sys.argv[2])

    def append(page: PagedAlert) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(page)) + "\n")

    with Pager(port, append):
        threading.Event().wait()


if __name__ == "__main__":
    main()
