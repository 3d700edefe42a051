"""The HTTP client of the commands; only this module imports `requests`.

A request returns an HttpResponse or raises an HttpError of one line: bodies are limited in size and time, redirects are
not followed, and a proxy from the environment is not used for this machine. This node's exporter is asked through its
unix socket where there is one: there the kernel says who asks.
"""

from __future__ import annotations

import http.client
import io
import math
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

from tachograph._version import __version__
from tachograph.servers.by_deadline import ByDeadline
from tachograph.servers.server_address import DEFAULT_PORT, UNIX, is_loopback, unix_socket_of, web_socket_path
from tachograph.text.printable import printable
from tachograph.wire import socket_path

if TYPE_CHECKING:
    import urllib3
    from requests.adapters import HTTPAdapter
    from urllib3.connectionpool import HTTPConnectionPool

MOST_BYTES = 128 << 20
"""Limit of an unpacked body: 16,384 series of 240 samples each are 110 MB."""

PROBE_SECONDS = 1.0
_CHUNK = 1 << 16
_LONGEST_REASON = 200


class HttpError(Exception):
    """The request failed; the text says why, in a few words."""


@dataclass(frozen=True)
class HttpResponse:
    """A response. `encoding` is empty unless a packed body was asked for and the body is packed."""

    status: int
    reason: str
    kind: str
    body: bytes
    encoding: str = ""


def ask(
    url: str,
    timeout: float,
    *,
    method: str = "GET",
    body: bytes | None = None,
    kind: str = "",
    most: int = MOST_BYTES,
    packed: bool = False,
) -> HttpResponse:
    """Send a request and return the response; raise HttpError.

    `timeout`: seconds to connect, for the whole header, and for the whole body. `most`: bytes of the largest body that
    is accepted. `packed`: return a body that the server sends as gzip without unpacking it.
    """
    handled = sys.exc_info()[1]
    try:
        with _Exchange(url, method, body, kind) as exchange:
            return exchange.answer(timeout, most, packed=packed)
    except _failures() as error:
        raise HttpError(_short(_reason(error, timeout, handled))) from error


class KeptPage:
    """A page that is asked for again and again over one connection, by one thread at a time.

    What a connection does not survive is forgotten with it: the next question reads names, certificate authorities and
    passwords anew.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._exchange: _Exchange | None = None

    def ask(self, timeout: float, *, most: int = MOST_BYTES) -> HttpResponse:
        """Return the page as `ask` does; raise HttpError.

        A server may close a connection just as it is used again: then it is asked once more over a new one.
        """
        handled = sys.exc_info()[1]
        try:
            return self._answer(timeout, most)
        except _failures() as error:
            raise HttpError(_short(_reason(error, timeout, handled))) from error

    def _answer(self, timeout: float, most: int) -> HttpResponse:
        kept, self._exchange = self._exchange, None
        if kept is not None and kept.is_outdated():
            kept.close()
        elif kept is not None:
            try:
                return self._by(kept, timeout, most)
            except _failures() as error:
                if not any(isinstance(each, (ConnectionResetError, BrokenPipeError)) for each in _causes(error, None)):
                    raise
        return self._by(_Exchange(self._url), timeout, most)

    def _by(self, exchange: _Exchange, timeout: float, most: int) -> HttpResponse:
        """Return the answer by an exchange, which is kept if that is as it should be."""
        is_kept = False
        try:
            answer = exchange.answer(timeout, most)
            is_kept = answer.status == http.client.OK
        finally:
            if is_kept:
                self._exchange = exchange
            else:
                exchange.close()
        return answer

    def close(self) -> None:
        """Close the connection; the next question makes another one."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()


class _Exchange:
    """A request, ready to be sent over a connection of its own, which is made when it is first sent."""

    def __init__(self, url: str, method: str = "GET", body: bytes | None = None, kind: str = "") -> None:
        import requests  # here, not above: the --help of a command does not need it

        self._session = session = requests.Session()
        self._parts = urlsplit(url)
        self._own = unix_socket_of(self._parts) or _own_exporter(self._parts)
        if self._own is not None:
            url = urlunsplit(("http", "localhost", self._parts.path, self._parts.query, ""))
        for scheme in ("http://", "https://"):
            session.mount(scheme, _adapter(self._own))
        session.trust_env = not _is_loopback(url)
        session.verify = _authorities()
        headers = {"Accept-Encoding": "gzip", "User-Agent": f"tachograph/{__version__}"}
        if kind:
            headers["Content-Type"] = kind
        self._request = session.prepare_request(requests.Request(method, url, data=body, headers=headers))
        assert self._request.url is not None
        self._settings = session.merge_environment_settings(self._request.url, {}, True, None, None)
        self._adapter = session.get_adapter(self._request.url)

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def is_outdated(self) -> bool:
        """Return whether this node's exporter can be asked through its unix socket by now, and is not."""
        return self._own is None and _own_exporter(self._parts) is not None

    def answer(self, timeout: float, most: int, *, packed: bool = False) -> HttpResponse:
        """Send the request and return the response; raise HttpError or one of `_failures`."""
        with self._adapter.send(self._request, timeout=timeout, **self._settings) as response:
            if response.is_redirect:
                raise HttpError(f"it redirects to {_short(response.headers['Location'])}")
            found = b"".join(_chunks(response.raw, timeout, most, packed=packed))
            encoding = response.headers.get("Content-Encoding", "") if packed else ""
            media = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            return HttpResponse(response.status_code, _short(response.reason or ""), media, found, encoding)


def _failures() -> tuple[type[Exception], ...]:
    """Return what a request raises that fails."""
    import urllib3

    return (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)


def without_password(url: str) -> str:
    """Return a URL without user and password, as it may be shown."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if (path := unix_socket_of(parts)) is not None:
        return f"{UNIX}{path}{parts.path}"
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _chunks(raw: urllib3.BaseHTTPResponse, timeout: float, most: int, *, packed: bool) -> Iterator[bytes]:
    """Yield the body; the timeout is exceeded by at most one read."""
    end, size = time.monotonic() + timeout, 0
    while chunk := raw.read1(_CHUNK, decode_content=not packed):
        size += len(chunk)
        if size > most:
            raise HttpError(f"the response is larger than {most >> 20} MiB")
        if time.monotonic() > end:
            raise HttpError(f"timed out: the response is not complete after {timeout:g} s")
        yield chunk


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return is_loopback(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _own_exporter(url: SplitResult) -> str | None:
    """Return the unix socket of this node's exporter if the URL names that at its usual port, and it listens there."""
    if url.scheme != "http" or url.port != DEFAULT_PORT or url.username is not None:
        return None
    if not _is_loopback(url.geturl()) and url.hostname != socket.gethostname().lower():
        return None
    path = web_socket_path(socket_path())
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(path)
        except OSError:
            return None
    return path


def _adapter(path: str | None) -> HTTPAdapter:
    """Return what sends requests, through a unix socket if there is a path; the header must be complete in time."""
    from requests.adapters import HTTPAdapter

    adapter = HTTPAdapter()
    adapter.poolmanager.pool_classes_by_scheme = _pools(path)
    return adapter


@cache
def _pools(path: str | None) -> dict[str, type[HTTPConnectionPool]]:
    """Return the pools of such connections, by scheme: classes that are made once, not for each of a run's nodes."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Connection(HTTPConnection):
        response_class = _HeaderInTime

        def _new_conn(self) -> socket.socket:
            if path is None:
                return super()._new_conn()
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(self.timeout)
                sock.connect(path)
            except OSError:
                sock.close()
                raise
            return sock

    class TlsConnection(HTTPSConnection):
        response_class = _HeaderInTime

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = TlsConnection

    return {"http": Pool, "https": TlsPool}


class _HeaderInTime(http.client.HTTPResponse):
    """A response whose whole header must come within the connection's timeout, which limits each read alone."""

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - as http.client has it
        super().__init__(sock, *arguments, **named)
        timeout = sock.gettimeout()
        self._bytes = ByDeadline(sock, math.inf if timeout is None else time.monotonic() + timeout)
        self.fp.close()
        self.fp = io.BufferedReader(self._bytes)

    def begin(self) -> None:
        """Read the header."""
        super().begin()
        self._bytes.lift()


def _authorities() -> str | bool:
    """Return the certificate authorities of the system, which include a private one, unlike the bundled ones."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or True


def _reason(error: BaseException, timeout: float, handled: BaseException | None) -> str:
    """Return why a request failed, from the innermost cause that the libraries have wrapped.

    `handled`: what its caller was handling when it asked, which Python notes as a cause, too.
    """
    import requests
    import urllib3

    causes = list(_causes(error, handled))
    if any(isinstance(each, (requests.Timeout, urllib3.exceptions.ReadTimeoutError, TimeoutError)) for each in causes):
        return f"timed out: no response within {timeout:g} s"
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or cause}"
    last = causes[-1]
    if isinstance(last, http.client.BadStatusLine):
        return f"it does not speak HTTP: {last}"
    strerror = last.strerror if isinstance(last, OSError) else None
    return strerror or str(last) or type(last).__name__


def _causes(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes up to what was handled before, the innermost last."""
    cause: BaseException | None = error
    for _ in range(16):
        if cause is None or cause is handled:
            return
        yield cause
        inner = getattr(cause, "reason", None)  # where urllib3 keeps it
        cause = inner if isinstance(inner, BaseException) else cause.__cause__ or cause.__context__


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
