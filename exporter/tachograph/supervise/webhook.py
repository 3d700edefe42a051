"""Listens for Alertmanager's webhooks, from senders that have a secret or a certificate; all others are refused.

A few connections at a time, each for one message of bounded size, which must be whole within seconds.
"""

from __future__ import annotations

import hmac
import io
import socket
import socketserver
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType

from tachograph.node.web.web_config import is_named
from tachograph.node.web.web_config_file import WebConfigFile
from tachograph.servers.by_deadline import ByDeadline
from tachograph.servers.few_connections import FewConnections
from tachograph.servers.server_address import is_loopback, listen_address
from tachograph.supervise.alerts import MOST_BYTES
from tachograph.supervise.pushed_alerts import FORGED, MALFORMED, TOO_MANY, PushedAlerts

MOST_CONNECTIONS = 8
MESSAGE_SECONDS = 5.0
"""For all of a message; for a TLS handshake before it, too."""
LEAST_SECRET_BYTES = 16
LOOPBACK = "127.0.0.1"

MOST_BYTES_OF_STRANGERS = 1 << 16
"""Read of a message that is refused, so that its sender gets the answer."""


class WebhookError(Exception):
    """There can be no receiver as it was asked for; the text says why."""


@dataclass(frozen=True)
class Admission:
    """Who may send: whoever has the text of a file, a certificate, or both as far as both are given."""

    secret: Path | None
    tls: WebConfigFile | None

    @property
    def has_tls(self) -> bool:
        """Whether what is sent is encrypted."""
        return self.tls is not None and self.tls.current.context is not None

    @property
    def asks_for_certificate(self) -> bool:
        """Whether only a client with a certificate gets through."""
        context = None if self.tls is None else self.tls.current.context
        return context is not None and context.verify_mode is ssl.CERT_REQUIRED

    def admits(self, header: str) -> bool:
        """Return whether an Authorization header has the secret, which is read anew: it may have been replaced."""
        if self.secret is None:
            return self.asks_for_certificate
        scheme, _, given = header.partition(" ")
        try:
            expected = read_secret(self.secret)
        except WebhookError:
            return False
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), expected)


def read_secret(path: Path) -> bytes:
    """Return the secret in a file; raise WebhookError if it is none, or everybody's."""
    try:
        text, mode = path.read_bytes().strip(), path.stat().st_mode
    except OSError as error:
        raise WebhookError(f"{path}: {error.strerror or error}") from error
    if mode & 0o007:
        raise WebhookError(f"{path} may be read by everybody: chmod o= {path}")
    if len(text) < LEAST_SECRET_BYTES or not text.isascii():
        raise WebhookError(
            f"{path} must have at least {LEAST_SECRET_BYTES} characters, such as from openssl rand -hex 32"
        )
    return text


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of PORT on loopback, HOST:PORT or [IPv6]:PORT; raise ValueError."""
    host, port = listen_address(text if ":" in text else f"{LOOPBACK}:{text}")
    if host is None:  # ":PORT" means all addresses elsewhere
        raise ValueError("expected PORT, HOST:PORT or [IPv6]:PORT")
    return host, port


class WebhookServer:
    """Takes webhooks in threads of its own, within a context whose value is the address to send to.

    Raises WebhookError for what is not safe.
    """

    def __init__(self, host: str, port: int, admission: Admission, alerts: PushedAlerts) -> None:
        self._host, self._admission, self._alerts = host, admission, alerts
        if admission.secret is None and not admission.asks_for_certificate:
            raise WebhookError("expected a secret, or client_auth_type: RequireAndVerifyClientCert")
        if admission.secret is not None:
            read_secret(admission.secret)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise WebhookError(f"{host}: {error.strerror or error}") from error
        self._family, self._place = found[0], (str(found[4][0]), port)
        is_of_others = not is_loopback(self._place[0])
        if is_of_others and not admission.has_tls:
            raise WebhookError(f"{host} can be reached from elsewhere, and without TLS a secret can be read on its way")
        self._server: _Server | None = None

    def __enter__(self) -> str:
        """Begin to listen; raise OSError."""
        self._server = _Server(self._family, self._place, self._admission, self._alerts)
        threading.Thread(target=self._server.serve_forever, name="webhooks", daemon=True).start()
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._admission.has_tls else 'http'}://{host}:{self._server.server_address[1]}/"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


_Request = socket.socket | tuple[bytes, socket.socket]
"""A connection; of the two that socketserver knows, the other is of UDP."""


class _Server(FewConnections, socketserver.TCPServer):
    most = MOST_CONNECTIONS
    allow_reuse_address = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, family: int, place: tuple[str, int], admission: Admission, alerts: PushedAlerts) -> None:
        self.address_family = family
        self.admission, self.alerts = admission, alerts
        super().__init__(place, _Message)

    def refused(self, client_address: object) -> None:
        self.alerts.count(TOO_MANY, _host(client_address))

    def serve(self, request: _Request, client_address: object) -> None:
        if (secure := self._secured(request)) is not None:
            super().serve(secure, client_address)
        else:
            self.alerts.count(FORGED, _host(client_address))
            self.shutdown_request(request)

    def handle_error(self, request: _Request, client_address: object) -> None:
        """Count what came to no message: a connection that broke off, or came too late."""
        self.alerts.count(MALFORMED, _host(client_address))

    def _secured(self, request: _Request) -> socket.socket | None:
        """Return a connection once its TLS handshake is done, None if it is refused."""
        assert isinstance(request, socket.socket)
        tls = self.admission.tls
        if tls is None:
            return request
        tls.refresh()
        current = tls.current
        if current.context is None:
            return request
        request.settimeout(MESSAGE_SECONDS)
        try:
            secure = current.context.wrap_socket(request, server_side=True)
        except OSError:  # ssl.SSLError, too
            return None
        if not is_named(secure.getpeercert(), current.client_names):
            secure.close()
            return None
        return secure


class _Message(BaseHTTPRequestHandler):
    """One message, after which its connection is closed."""

    server: _Server
    server_version, sys_version = "tachograph", ""

    def setup(self) -> None:
        deadline = time.monotonic() + MESSAGE_SECONDS
        self._sender = str(self.client_address[0])
        super().setup()
        self.rfile = io.BufferedReader(ByDeadline(self.connection, deadline))

    def do_POST(self) -> None:
        """Take a message."""
        length = self.headers.get("Content-Length", "")
        is_whole = length.isascii() and length.isdigit() and len(length) < 9 and int(length) <= MOST_BYTES
        is_admitted = self.server.admission.admits(self.headers.get("Authorization", ""))
        most = MOST_BYTES if is_admitted else MOST_BYTES_OF_STRANGERS
        body = self.rfile.read(min(int(length), most)) if is_whole else b""
        if not is_admitted:
            self._answer(HTTPStatus.UNAUTHORIZED, FORGED)
            return
        outcome = self.server.alerts.take(body) if is_whole and self.path == "/" else MALFORMED
        self._answer(HTTPStatus.BAD_REQUEST if outcome == MALFORMED else HTTPStatus.OK, outcome)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no message, such as another method."""
        self._answer(code, MALFORMED)

    def log_error(self, *_: object) -> None:
        """Count a message that has not come within its time."""
        self.server.alerts.count(MALFORMED, self._sender)

    def log_message(self, *_: object) -> None:
        """Say nothing: what is refused is counted."""

    def _answer(self, status: int, outcome: str) -> None:
        self.server.alerts.count(outcome, self._sender)
        self.close_connection = True
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(outcome)))
            self.end_headers()
            self.wfile.write(outcome.encode())


def _host(address: object) -> str:
    """Return the host of a peer's address."""
    return str(address[0]) if isinstance(address, tuple) else str(address)
