"""Where a server is: the address of an exporter, of Prometheus or of another, as a person types it."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import SplitResult, quote, unquote, urlsplit

UNIX = "unix:"
DEFAULT_PORT = 10024
"""Where an exporter listens by default."""


def exporter_url(text: str) -> str:
    """Return the URL of a page from what a person types: a node, node:port, a URL, unix:/PATH; raise ValueError."""
    if text.startswith(f"{UNIX}/") and not text.startswith(f"{UNIX}//"):
        return f"{UNIX}//{quote(text.removeprefix(UNIX), safe='')}/metrics"
    if text.startswith(f"{UNIX}//") and urlsplit(text).netloc:
        return text if urlsplit(text).path else f"{text}/metrics"
    given = _parts(text)
    port = "" if given.port or given.scheme == "https" else f":{DEFAULT_PORT}"
    return f"{given.scheme}://{given.netloc}{port}{given.path.rstrip('/') or '/metrics'}"


def server_url(text: str, port: int) -> str:
    """Return the URL of a server from a host, host:port or a URL, without a / at its end; raise ValueError.

    `port` is the server's usual one, for an address that has neither a port nor a scheme.
    """
    given = _parts(text)
    usual = "" if "://" in text or given.port else f":{port}"
    return f"{given.scheme}://{given.netloc}{usual}{given.path}".rstrip("/")


def known_server_url(name: str, text: str, port: int, ways: str) -> str:
    """Return the same for a server with a name, such as Prometheus; the ValueError says where to give its address."""
    try:
        return server_url(text, port)
    except ValueError as error:
        shown = text.rpartition("@")[2]
        raise ValueError(f"{shown!r} is not an address of {name}: {error}; give it with {ways}") from error


def _parts(text: str) -> SplitResult:
    given = urlsplit(text if "://" in text else f"http://{text}")
    if given.scheme not in ("http", "https") or not given.hostname:
        raise ValueError("expected HOST, HOST:PORT or a URL with http:// or https://")
    given.port  # noqa: B018 - raises ValueError for what is no port
    return given


def listen_address(text: str) -> tuple[str | None, int]:
    """Return host and port of host:port, :port (no host) or [ipv6]:port; raise ValueError."""
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdecimal() and 0 <= int(port) <= 65535):
        raise ValueError("expected HOST:PORT, with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets: [::1]:9090")
    if any(c.isspace() or c in "[]/" for c in host):
        raise ValueError("expected a host name or an address before the port")
    return host or None, int(port)


def is_loopback(address: str) -> bool:
    """Return whether an IP address, with or without a zone, is this machine's own; raise ValueError for a name."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def web_socket_path(socket: str) -> str:
    """Return where an exporter serves its pages on a unix socket by default, beside the socket of the ranks."""
    return os.path.splitext(socket)[0] + ".web.sock"  # noqa: PTH122 - of any path, as a text


def unix_socket_of(url: SplitResult) -> str | None:
    """Return the path of the unix socket that a URL of `exporter_url` names, None for one with a host."""
    return unquote(url.netloc) if f"{url.scheme}:" == UNIX else None
