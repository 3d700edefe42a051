"""Alertmanager's HTTP API v2, which is the same since 0.16, for the commands that use it. Nothing here retries."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

from tachograph.files.unreadable import UNREADABLE
from tachograph.servers.http_client import MOST_BYTES, HttpError, ask, without_password
from tachograph.servers.server_address import known_server_url

T = TypeVar("T")

ENVIRONMENT = "ALERTMANAGER_URL"
DEFAULT_PORT = 9093
DEFAULT_URL = f"http://localhost:{DEFAULT_PORT}"
TIMEOUT_SECONDS = 10.0
ERROR_BYTES = 500
"""How much of an error response is shown."""

_ATTEMPTS = re.compile(
    r'^alertmanager_notification_requests_(failed_)?total\{(?:[^}]*,)?integration="([^"]*)"[^}]*\} (\d[\d.e+]*)$', re.M
)

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)")


class AlertmanagerError(Exception):
    """A request to Alertmanager failed; the text says in one line what to do."""


class AlertmanagerRefusalError(AlertmanagerError):
    """Alertmanager answered with an error: its status, and the reason that it gave."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(f"Alertmanager at {url} refused: {reason}")
        self.status = status
        self.reason = reason


class Alertmanager:
    """The Alertmanager at HOST, HOST:PORT or a URL; raises AlertmanagerError for other texts."""

    def __init__(self, address: str) -> None:
        try:
            self._address = known_server_url("Alertmanager", address, DEFAULT_PORT, f"--alertmanager or ${ENVIRONMENT}")
        except ValueError as error:
            raise AlertmanagerError(str(error)) from error
        self.url = without_password(self._address)

    def ask(
        self, method: str, path: str, read: Callable[[Any], T], content: object = None, *, most: int = MOST_BYTES
    ) -> T:
        """Return what `read` makes of a response of at most so many bytes; raise AlertmanagerError."""
        body = None if content is None else json.dumps(content).encode()
        try:
            response = ask(
                f"{self._address}/api/v2/{path}", TIMEOUT_SECONDS, method=method, body=body, kind="application/json",
                most=most,
            )  # fmt: skip
        except HttpError as error:
            raise self._absent(error) from error
        if response.status >= 400:
            error_text = " ".join(response.body[:ERROR_BYTES].decode(errors="replace").split()).strip('"')
            raise AlertmanagerRefusalError(
                self.url, response.status, error_text or f"{response.status} {response.reason}"
            )
        try:
            return read(json.loads(response.body or b"null"))
        except UNREADABLE as error:
            raise self._absent("the server there does not speak the Alertmanager API") from error

    def attempts(self) -> dict[str, tuple[float, float]]:
        """Return by integration how often it tried to notify since its start, and how often in vain.

        Raise AlertmanagerError; empty where it shows no metrics.
        """
        try:
            response = ask(f"{self._address}/metrics", TIMEOUT_SECONDS)
        except HttpError as error:
            raise self._absent(error) from error
        found: dict[str, list[float]] = {}
        text = response.body.decode(errors="replace") if response.status < 400 else ""
        for failed, integration, number in _ATTEMPTS.findall(text):
            found.setdefault(integration, [0.0, 0.0])[bool(failed)] += float(number)
        return {integration: (tried, in_vain) for integration, (tried, in_vain) in found.items()}

    def _absent(self, reason: object) -> AlertmanagerError:
        return AlertmanagerError(
            f"no Alertmanager at {self.url}: {reason}; give its address with --alertmanager or ${ENVIRONMENT}"
        )


def time_of(text: str) -> datetime:
    """Return a time of Alertmanager, in UTC and whole seconds; raise one of UNREADABLE.

    It has the offset of whoever sent it, such as a vmalert with a local time zone. Python 3.10 reads neither `Z` nor
    fractions other than of 3 or 6 digits.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.40} is not a time with its offset")
    return datetime.fromisoformat(found[1] + ("+00:00" if found[2] == "Z" else found[2])).astimezone(timezone.utc)


def default_url() -> str:
    """Return `$ALERTMANAGER_URL`, else the default address on this machine."""
    return os.environ.get(ENVIRONMENT) or DEFAULT_URL
