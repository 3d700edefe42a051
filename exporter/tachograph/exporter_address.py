"""Where an exporter is: its usual port, and its address as a person types it."""

from __future__ import annotations

from urllib.parse import urlsplit

DEFAULT_PORT = 10024
"""Where an exporter listens by default."""


def exporter_url(text: str) -> str:
    """Return the URL of a page from what a person types: a node, node:port, or a URL; raise ValueError."""
    given = urlsplit(text if "://" in text else f"http://{text}")
    port = "" if given.port or given.scheme == "https" else f":{DEFAULT_PORT}"
    return f"{given.scheme}://{given.netloc}{port}{given.path.rstrip('/') or '/metrics'}"
