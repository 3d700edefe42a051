"""Forwards queries to Prometheus: a few read-only paths, and nothing that writes, deletes or reloads."""

from __future__ import annotations

import json
import re

from tachograph.servers.http_client import HttpError, HttpResponse, ask, without_password
from tachograph.servers.prometheus_api import ENVIRONMENT, FORM

ALLOWED = re.compile(
    r"/api/v1/(query|query_range|series|labels|label/[a-zA-Z_][a-zA-Z0-9_]*/values|rules|metadata|status/buildinfo)"
)
MOST_BYTES = 32 << 20
"""Limit of a response, packed if Prometheus packs it: a browser cannot handle more."""


def fetch(prometheus: str, path: str, query: str, form: bytes | None, timeout: float = 60.0) -> HttpResponse:
    """Return the response of Prometheus; a failure has the form of a Prometheus error, for panels to show."""
    if not ALLOWED.fullmatch(path):
        return failed(403, f"{path} is not a path that this viewer forwards")
    shown = without_password(prometheus)
    url = f"{prometheus}{path}" + (f"?{query}" if query else "")
    method, kind = ("GET", "") if form is None else ("POST", FORM)
    try:
        response = ask(url, timeout, method=method, body=form, kind=kind, most=MOST_BYTES, packed=True)
    except HttpError as error:
        return failed(502, f"no Prometheus at {shown}: {error}; give its address with --prometheus or ${ENVIRONMENT}")
    if response.kind != "application/json" or response.encoding not in ("", "gzip"):
        return failed(502, f"Prometheus at {shown} responded {response.status} {response.reason}, which is not JSON")
    return response


def failed(status: int, text: str) -> HttpResponse:
    """Return an error in the form of a Prometheus error."""
    body = json.dumps({"status": "error", "errorType": "viewer", "error": text}).encode()
    return HttpResponse(status, "", "application/json", body)
