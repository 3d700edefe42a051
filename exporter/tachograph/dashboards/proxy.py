"""Prometheus' read-only API, handed through: a handful of paths, and nothing that writes, deletes or reloads."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tachograph.http_client import HttpError, ask, without_password
from tachograph.prometheus_api import ENVIRONMENT, FORM

ALLOWED = re.compile(
    r"/api/v1/(query|query_range|series|labels|label/[a-zA-Z_][a-zA-Z0-9_]*/values|rules|metadata|status/buildinfo)"
)
MOST_BYTES = 32 << 20
"""Of an answer, packed if Prometheus packs it: a browser is at its end before."""


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
    shown = without_password(prometheus)
    url = f"{prometheus}{path}" + (f"?{query}" if query else "")
    method, kind = ("GET", "") if form is None else ("POST", FORM)
    try:
        answer = ask(url, timeout, method=method, body=form, kind=kind, most=MOST_BYTES, packed=True)
    except HttpError as error:
        return failed(502, f"no Prometheus at {shown}: {error}; give its address with --prometheus or ${ENVIRONMENT}")
    if answer.kind != "application/json" or answer.encoding not in ("", "gzip"):
        return failed(502, f"Prometheus at {shown} answered {answer.status} {answer.reason} and no JSON")
    return Answer(answer.status, answer.body, answer.encoding)


def failed(status: int, text: str) -> Answer:
    """Return an error as Prometheus would."""
    return Answer(status, json.dumps({"status": "error", "errorType": "viewer", "error": text}).encode())
