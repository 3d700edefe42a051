"""Prometheus' read-only API, handed through: a handful of paths, and nothing that writes, deletes or reloads."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass

from tachograph.prometheus_api import ENVIRONMENT

ALLOWED = re.compile(
    r"/api/v1/(query|query_range|series|labels|label/[a-zA-Z_][a-zA-Z0-9_]*/values|rules|metadata|status/buildinfo)"
)
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Answer:
    """What goes back to the browser."""

    status: int
    body: bytes
    encoding: str = ""


def fetch(prometheus: str, path: str, query: str, form: bytes | None, timeout: float = 60.0) -> Answer:
    """Return Prometheus' answer; whatever fails on the way has the form of its errors, for panels to show."""
    if not ALLOWED.fullmatch(path):
        return failed(403, f"{path} is not among what this viewer may ask")
    url = f"{prometheus}{path}" + (f"?{query}" if query else "")
    headers = {"Accept-Encoding": "gzip"} | ({} if form is None else {"Content-Type": FORM})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, form, headers), timeout=timeout) as response:
            return Answer(response.status, response.read(), response.headers.get("Content-Encoding", ""))
    except urllib.error.HTTPError as error:
        body = error.read()
        if error.headers.get_content_type() == "application/json":
            return Answer(error.code, body, error.headers.get("Content-Encoding", ""))
        return failed(502, f"Prometheus at {prometheus} answered {error.code} {error.reason}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return failed(
            502, f"no Prometheus at {prometheus}: {reason}; give its address with --prometheus or ${ENVIRONMENT}"
        )


def failed(status: int, text: str) -> Answer:
    """Return an error as Prometheus would."""
    return Answer(status, json.dumps({"status": "error", "errorType": "viewer", "error": text}).encode())
