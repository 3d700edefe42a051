"""Silences of an Alertmanager, through its API v2, which is the same since 0.16."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from tachograph.http_client import UNREADABLE, HttpError, ask, without_password

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
ERROR_BYTES = 500
"""How much of an error response is shown."""


class AlertmanagerError(Exception):
    """A request to Alertmanager failed; the text says in one line what to do."""


@dataclass(frozen=True)
class SilenceMatcher:
    """A condition on a label: equal to a value or, with `regex`, fully matched by it."""

    name: str
    value: str
    regex: bool = False
    equal: bool = True

    def __str__(self) -> str:
        operator = ("=~" if self.regex else "=") if self.equal else ("!~" if self.regex else "!=")
        return f'{self.name}{operator}"{self.value}"'


@dataclass(frozen=True)
class Silence:
    """The alerts it matches, its start and end, author and reason; `id` is empty until Alertmanager assigns one."""

    matchers: tuple[SilenceMatcher, ...]
    starts: datetime
    ends: datetime
    by: str
    why: str
    id: str = ""
    state: str = "pending"


class Silences:
    """The silences of the Alertmanager at a URL. Every method raises AlertmanagerError."""

    def __init__(self, url: str) -> None:
        self._address = url.rstrip("/")
        self.url = without_password(self._address)

    def add(self, silence: Silence) -> str:
        """Create a silence; return its id."""
        return self._ask("POST", "silences", lambda created: str(created["silenceID"]), {
            "matchers": [
                {"name": one.name, "value": one.value, "isRegex": one.regex, "isEqual": one.equal}
                for one in silence.matchers
            ],
            "startsAt": silence.starts.isoformat(), "endsAt": silence.ends.isoformat(),
            "createdBy": silence.by, "comment": silence.why,
        })  # fmt: skip

    def current(self) -> list[Silence]:
        """Return the active and pending silences, the next to end first."""
        found = self._ask("GET", "silences", _silences)
        return sorted(
            (each for each in found if each.state != "expired"), key=lambda silence: (silence.ends, silence.id)
        )

    def expire(self, silence_id: str) -> None:
        """End a silence now."""
        self._ask("DELETE", f"silence/{urllib.parse.quote(silence_id, safe='')}", _nothing)

    def _ask(self, method: str, path: str, read: Callable[[Any], T], content: Mapping[str, Any] | None = None) -> T:
        """Return what `read` makes of the response."""
        body = None if content is None else json.dumps(content).encode()
        try:
            response = ask(
                f"{self._address}/api/v2/{path}", TIMEOUT_SECONDS, method=method, body=body, kind="application/json"
            )
        except HttpError as error:
            raise self._absent(error) from error
        if response.status >= 400:
            error_text = " ".join(response.body[:ERROR_BYTES].decode(errors="replace").split()).strip('"')
            error_text = error_text or f"{response.status} {response.reason}"
            if method == "DELETE" and response.status in (404, 422, 500):
                raise AlertmanagerError(f"there is no silence with this id ({error_text}); see --list")
            raise AlertmanagerError(f"Alertmanager at {self.url} refused: {error_text}")
        try:
            return read(json.loads(response.body or b"null"))
        except UNREADABLE as error:
            raise self._absent("the server there does not speak the Alertmanager API") from error

    def _absent(self, reason: object) -> AlertmanagerError:
        return AlertmanagerError(
            f"no Alertmanager at {self.url}: {reason}; give its address with --alertmanager or $ALERTMANAGER_URL"
        )


def _nothing(found: object) -> None:
    if found is not None:
        raise TypeError("not an empty response")


def _silences(found: object) -> list[Silence]:
    if not isinstance(found, list):
        raise TypeError("not a list of silences")
    return [_silence(one) for one in found]


def _silence(one: Mapping[str, Any]) -> Silence:
    return Silence(
        tuple(map(_matcher, one["matchers"])),
        _time(one["startsAt"]), _time(one["endsAt"]), str(one["createdBy"]), str(one["comment"]),
        str(one["id"]), one["status"]["state"],
    )  # fmt: skip


def _matcher(one: Mapping[str, Any]) -> SilenceMatcher:
    return SilenceMatcher(str(one["name"]), str(one["value"]), one["isRegex"], one.get("isEqual", True))


def _time(text: str) -> datetime:
    """Return a time of Alertmanager; Python 3.10 reads neither its `Z` nor fractions other than of 3 or 6 digits."""
    return datetime.fromisoformat(text.partition(".")[0].rstrip("Z") + "+00:00")
