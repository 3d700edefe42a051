"""The viewer's HTTP server: its files, the dashboards, and Prometheus behind a list of allowed paths.

The standard library's server, a thread per connection: this is one person's browser on loopback, it needs no extra, and
what it calls (`prometheus_api`) blocks.
"""

from __future__ import annotations

import ipaddress
import json
import mimetypes
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tachograph.dashboards import check, proxy
from tachograph.dashboards.bundle import Bundle
from tachograph.prometheus_api import Prometheus

MAX_FORM = 1 << 20
API = "/api/prometheus"
ALWAYS_NEW = "no-store"
CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # Grafana's libraries write their style sheets at run time
        "img-src 'self' data:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Viewer(ThreadingHTTPServer):
    """Serves the viewer at an address. `names`: the host names it answers to beside loopback and plain addresses."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], bundle: Bundle, prometheus: str, names: frozenset[str]) -> None:
        self.bundle = bundle
        self.prometheus = prometheus.rstrip("/")
        self.names = names | {"localhost"}
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)

    def serves(self, host: str) -> bool:
        """Whether a Host header is one of ours: a page of another name that resolves to here (DNS rebinding) is not."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name.lower() in self.names


class Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: Viewer
    protocol_version = "HTTP/1.1"
    server_version = "tachograph-dashboards"
    sys_version = ""
    timeout = 120

    def do_GET(self) -> None:
        """Answer a page, a file, a dashboard, a check or a query."""
        self._answer(None)

    def do_POST(self) -> None:
        """Answer a query whose expression is too long for a URL."""
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_FORM:
            self.close_connection = True
            self._send(413, b"a form of at most 1 MiB with its Content-Length is needed", "text/plain")
            return
        self._answer(self.rfile.read(int(length)))

    def _answer(self, form: bytes | None) -> None:
        if not self.server.serves(self.headers.get("Host", "")):
            said = b"this viewer answers to localhost and to addresses; more names: --host NAME"
            self._send(421, said, "text/plain")
            return
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path.startswith(f"{API}/"):
            found = proxy.fetch(self.server.prometheus, path[len(API) :], url.query, form)
            self._send(found.status, found.body, "application/json", ALWAYS_NEW, found.encoding)
        elif form is not None:
            self._send(405, b"only queries are posted", "text/plain")
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
            self._send(200, file.read_bytes(), "application/json", ALWAYS_NEW)
        else:
            self._send(404, f"no dashboard {uid}".encode(), "text/plain")

    def _check(self, given: dict[str, list[str]]) -> None:
        try:
            start, end = (float(given[name][0]) for name in ("start", "end"))
        except (KeyError, ValueError):
            self._send(400, b"start and end are needed, in Unix seconds", "text/plain")
            return
        run = given.get("run", [None])[0]
        self._json(check.report(Prometheus(self.server.prometheus), run, start, end))

    def _file(self, name: str) -> None:
        files = self.server.bundle.files
        packed = f"{name}.gz" in files
        if name not in files and not packed:
            self._send(404, b"no such file", "text/plain")
            return
        kind = TYPES.get("." + name.rsplit(".", 1)[-1]) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        body = (self.server.bundle.viewer / (f"{name}.gz" if packed else name)).read_bytes()
        # An upgrade brings new files under the same names: the browser keeps them, but asks.
        self._send(200, body, kind, "no-cache", "gzip" if packed else "")

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), "application/json", ALWAYS_NEW)

    def _send(self, status: int, body: bytes, kind: str, cache: str = ALWAYS_NEW, encoding: str = "") -> None:
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
        """Say nothing: the terminal shows one line, the address."""

    def handle(self) -> None:
        """Serve a connection until it ends; a browser that leaves in the middle of an answer is no error."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True
