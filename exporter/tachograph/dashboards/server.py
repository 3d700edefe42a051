"""The HTTP server of the viewer: its files, the dashboards, and a few paths of Prometheus.

This is the server of the standard library with a thread per connection: its client is one browser on loopback, and what
it calls (`prometheus_api`) blocks.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import mimetypes
import re
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tachograph.dashboards import proxy
from tachograph.dashboards.bundle import Bundle
from tachograph.dashboards.check import check
from tachograph.servers.few_connections import FewConnections
from tachograph.servers.prometheus_api import Prometheus
from tachograph.text.printable import printable

MAX_FORM = 1 << 20
CONNECTIONS = 16
"""Limit of simultaneous connections, with a thread each; a browser opens six."""
REQUEST_SECONDS = 10.0
"""How long a client may take to send a whole request, from connecting or from the previous response."""
ANSWER_SECONDS = 120.0
"""How long a response may take, including 60 s for Prometheus and the transfer to a slow client."""
API = "/api/prometheus"
NO_STORE = "no-store"
CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # Grafana's libraries create style sheets at run time
        "img-src 'self' data:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Viewer(FewConnections, HTTPServer):
    """Serves the viewer at an address, to a few connections that must not idle.

    `names`: the host names that it accepts besides localhost and IP addresses.
    """

    most = CONNECTIONS

    def __init__(self, address: tuple[str, int], bundle: Bundle, prometheus: str, names: frozenset[str]) -> None:
        self.bundle = bundle
        self.prometheus = prometheus.rstrip("/")
        self.names = names | {"localhost"}
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.due: dict[socket.socket, float] = {}
        """When each open connection is closed, by time.monotonic()."""
        super().__init__(address, Handler)

    def admitted(self, request: socket.socket) -> None:
        """Give a connection its time."""
        self.due[request] = time.monotonic() + REQUEST_SECONDS

    def left(self, request: socket.socket) -> None:
        """Forget a connection."""
        self.due.pop(request, None)

    def service_actions(self) -> None:
        """Close the connections that have taken too long; called twice a second."""
        now = time.monotonic()
        for connection, due in list(self.due.items()):
            if now > due:
                with contextlib.suppress(OSError):  # it has just ended
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  (as socketserver has it)
        """Report an error in one line: it is a bug, as clients that disconnect are not an error."""
        error = sys.exc_info()[1]
        print(printable(f"tachograph dashboards: a request failed: {error!r:.200}"), file=sys.stderr)  # noqa: T201

    def serves(self, host: str) -> bool:
        """Whether a Host header is accepted; that of a foreign name that resolves to here (DNS rebinding) is not."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name.lower() in self.names


class Handler(BaseHTTPRequestHandler):
    """A connection of a browser."""

    server: Viewer
    protocol_version = "HTTP/1.1"
    server_version = "tachograph-dashboards"
    sys_version = ""

    def handle_one_request(self) -> None:
        """Serve a request; the time limit of the next one starts with the response."""
        self._take(REQUEST_SECONDS)
        super().handle_one_request()

    def do_GET(self) -> None:
        """Respond with a page, a file, a dashboard, a check or the result of a query."""
        self._respond(None)

    def do_POST(self) -> None:
        """Respond to a query whose expression is too long for a URL."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,7}", length) or int(length) > MAX_FORM:
            self.close_connection = True
            self._send(413, b"a form of at most 1 MiB with a Content-Length is required", "text/plain")
            return
        form = self.rfile.read(int(length))
        if len(form) < int(length):  # the client disconnected, or was disconnected
            self.close_connection = True
            return
        self._respond(form)

    def _take(self, seconds: float) -> None:
        self.server.due[self.connection] = time.monotonic() + seconds

    def _respond(self, form: bytes | None) -> None:
        self._take(ANSWER_SECONDS)
        if not self.server.serves(self.headers.get("Host", "")):
            text = b"this viewer accepts localhost and IP addresses; add other names with --host NAME"
            self._send(421, text, "text/plain")
            return
        try:
            url = urlsplit(self.path)
        except ValueError:
            self._send(400, b"no such address", "text/plain")
            return
        path = unquote(url.path)
        if path.startswith(f"{API}/"):
            found = proxy.fetch(self.server.prometheus, path[len(API) :], url.query, form)
            self._send(found.status, found.body, "application/json", NO_STORE, found.encoding)
        elif form is not None:
            self._send(405, b"POST is for queries only", "text/plain")
        elif path == "/" or path.startswith("/d/"):
            self._file("index.html")
        elif path == "/api/dashboards":
            self._json(self.server.bundle.entries())
        elif path.startswith("/api/dashboards/"):
            self._dashboard(path.rsplit("/", 1)[1])
        elif path == "/api/check":
            self._check(parse_qs(url.query))
        else:
            self._file(path.lstrip("/"))

    def _dashboard(self, uid: str) -> None:
        if file := self.server.bundle.by_uid().get(uid):
            self._send(200, file.read_bytes(), "application/json", NO_STORE)
        else:
            self._send(404, f"no dashboard {uid}".encode(), "text/plain")

    def _check(self, given: dict[str, list[str]]) -> None:
        try:
            start, end = (float(given[name][0]) for name in ("start", "end"))
        except (KeyError, ValueError):
            self._send(400, b"start and end are required, in Unix seconds", "text/plain")
            return
        run = given.get("run", [None])[0]
        self._json(check(Prometheus(self.server.prometheus), run, start, end))

    def _file(self, name: str) -> None:
        files = self.server.bundle.files
        packed = f"{name}.gz" in files
        if name not in files and not packed:
            self._send(404, b"no such file", "text/plain")
            return
        kind = TYPES.get("." + name.rsplit(".", 1)[-1]) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        body = (self.server.bundle.viewer / (f"{name}.gz" if packed else name)).read_bytes()
        # An upgrade replaces files under the same names: the browser must revalidate what it has cached.
        self._send(200, body, kind, "no-cache", "gzip" if packed else "")

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), "application/json", NO_STORE)

    def _send(self, status: int, body: bytes, kind: str, cache: str = NO_STORE, encoding: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", cache)
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.send_header("Content-Security-Policy", CONTENT_POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal shows one line, the address."""

    def handle(self) -> None:
        """Serve a connection until it ends; a client that disconnects during a response is not an error."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True
