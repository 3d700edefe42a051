"""HTTP to servers that others run; only this file knows `requests`.

Whatever the other side does becomes an Answer or an HttpError of one line: bodies are bounded in size and time, no
redirect is followed, and a proxy from the environment is never asked for this machine.
"""

from __future__ import annotations

import http.client
import ipaddress
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from tachograph._version import __version__
from tachograph.printable import printable

if TYPE_CHECKING:
    import urllib3

MOST_BYTES = 128 << 20
"""Of a body, unpacked: 16,384 series of 240 samples each are 110 MB."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading an answer of an unforeseen form may raise."""

_CHUNK = 1 << 16
_LONGEST_REASON = 200


class HttpError(Exception):
    """There is no answer to be had; the text says why, in a few words."""


@dataclass(frozen=True)
class Answer:
    """What came back. `encoding` is empty unless the body was asked for packed and is."""

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
) -> Answer:
    """Return the answer to a request; raise HttpError.

    `timeout`: seconds to connect, to begin to answer, and for the whole body. `most`: the largest body that is taken.
    `packed`: the body is returned as gzip where the server sends it so.
    """
    import requests  # here, not above: the --help of a command does not need it
    import urllib3

    headers = {"Accept-Encoding": "gzip", "User-Agent": f"tachograph/{__version__}"}
    try:
        with requests.Session() as session:
            session.trust_env = not _is_loopback(url)
            session.verify = _authorities()
            request = {**headers, "Content-Type": kind} if kind else headers
            with session.request(
                method, url, data=body, headers=request, timeout=timeout, allow_redirects=False, stream=True
            ) as response:
                if response.is_redirect:
                    raise HttpError(f"it redirects to {_short(response.headers['Location'])}")
                found = b"".join(_chunks(response.raw, timeout, most, packed=packed))
                encoding = response.headers.get("Content-Encoding", "") if packed else ""
                media = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
                return Answer(response.status_code, _short(response.reason or ""), media, found, encoding)
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
        raise HttpError(_short(_reason(error, timeout))) from error


def without_password(url: str) -> str:
    """Return a URL as it may be shown: without a user and a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _chunks(raw: urllib3.BaseHTTPResponse, timeout: float, most: int, *, packed: bool) -> Iterator[bytes]:
    """Yield the body; at most one read is waited for beyond the timeout."""
    end, size = time.monotonic() + timeout, 0
    while chunk := raw.read1(_CHUNK, decode_content=not packed):
        size += len(chunk)
        if size > most:
            raise HttpError(f"it answers with more than {most >> 20} MiB")
        if time.monotonic() > end:
            raise HttpError(f"timed out: the answer is not complete after {timeout:g} s")
        yield chunk


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _authorities() -> str | bool:
    """Return the system's certificate authorities: a cluster's own is among those, not among the bundled ones."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or True


def _reason(error: BaseException, timeout: float) -> str:
    """Return why a request failed: libraries wrap the cause several times over."""
    from urllib3.exceptions import TimeoutError as Urllib3TimeoutError

    causes = list(_causes(error))
    if any(isinstance(each, (Urllib3TimeoutError, TimeoutError)) for each in causes):
        return f"timed out: no answer within {timeout:g} s"
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS fails: {cause.reason or cause}"
    last = causes[-1]
    if isinstance(last, http.client.BadStatusLine):
        return f"it does not speak HTTP: {last}"
    strerror = last.strerror if isinstance(last, OSError) else None
    return strerror or str(last) or type(last).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it, the first cause last."""
    cause: BaseException | None = error
    for _ in range(16):
        if cause is None:
            return
        yield cause
        inner = getattr(cause, "reason", None)  # as urllib3 keeps it
        cause = inner if isinstance(inner, BaseException) else cause.__cause__ or cause.__context__


def _short(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
