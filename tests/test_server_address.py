"""Addresses as people type them."""

from __future__ import annotations

import pytest

from tachograph.server_address import exporter_url, server_url


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
