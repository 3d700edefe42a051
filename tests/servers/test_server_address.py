"""Addresses as people type them."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tachograph.servers.http_client import without_password
from tachograph.servers.server_address import exporter_url, listen_address, server_url, unix_socket_of, web_socket_path


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("prom", "http://prom:9090"),
        ("prom:99", "http://prom:99"),
        ("localhost:9090/", "http://localhost:9090"),
        ("[::1]:9090", "http://[::1]:9090"),
        ("[::1]", "http://[::1]:9090"),
        ("http://prom/", "http://prom"),
        ("https://user:pw@monitoring.example/prometheus/", "https://user:pw@monitoring.example/prometheus"),
        ("prom/prometheus", "http://prom:9090/prometheus"),
    ],
)
def test_an_address_with_and_without_scheme(text: str, url: str) -> None:
    """The usual port goes to an address that has neither a port nor a scheme."""
    assert server_url(text, 9090) == url


@pytest.mark.parametrize("text", ["", "http://", "ftp://prom", "file:///etc/passwd", "prom:port", "http://prom:99999"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """Both of a server and of an exporter."""
    for read in (exporter_url, lambda text: server_url(text, 9090)):
        with pytest.raises(ValueError, match=r"expected HOST|[Pp]ort"):
            read(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9100", (None, 9100)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("node-7.cluster:65535", ("node-7.cluster", 65535)),
        ("[::]:9100", ("::", 9100)),
        ("[::1]:9100", ("::1", 9100)),
    ],
)
def test_where_a_server_listens(text: str, address: tuple[str | None, int]) -> None:
    """Host and port, a port alone, and IPv6 in brackets are understood."""
    assert listen_address(text) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "expected HOST:PORT") for text in ("", ":", "9100", "host", "host:", ":65536", ":-1", ":٣", "h:²")),
        ("::1:9100", "brackets"),
        ("a b:1", "before the port"),
        ("http://h:1", "brackets"),
    ],
)
def test_where_no_server_can_listen(text: str, why: str) -> None:
    """Anything else is refused, and why."""
    with pytest.raises(ValueError, match=why):
        listen_address(text)


def test_a_unix_socket() -> None:
    """`unix:/PATH` names an exporter's own socket, however the path is written; it is shown as it was typed."""
    url = exporter_url("unix:/run/My Folder/rank.web.sock")
    assert url == "unix://%2Frun%2FMy%20Folder%2Frank.web.sock/metrics"
    base = url.removesuffix("/metrics")
    assert exporter_url(base) == exporter_url(url) == url
    assert unix_socket_of(urlsplit(f"{base}/api/node?x=1")) == "/run/My Folder/rank.web.sock"
    assert unix_socket_of(urlsplit("http://unix/metrics")) is None
    assert without_password(url) == "unix:/run/My Folder/rank.web.sock/metrics"
    assert web_socket_path("/run/tachograph/rank.sock") == "/run/tachograph/rank.web.sock"
    for wrong in ("unix:relative", "unix://"):
        with pytest.raises(ValueError, match=r"expected HOST|[Pp]ort"):
            exporter_url(wrong)
