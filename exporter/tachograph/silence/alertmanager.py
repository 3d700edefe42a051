"""The silences of an Alertmanager, over its API (v2, the same since 0.16)."""

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
SAID_BYTES = 500
"""Of a refusal, that are shown."""


class AlertmanagerError(Exception):
    """Alertmanager did not do what it was asked; the text says, in one line, what to do."""


@dataclass(frozen=True)
class Matcher:
    """One condition on a label: equal to a value or, with `regex`, matched by it as a whole."""

    name: str
    value: str
    regex: bool = False
    equal: bool = True

    def __str__(self) -> str:
        operator = ("=~" if self.regex else "=") if self.equal else ("!~" if self.regex else "!=")
        return f'{self.name}{operator}"{self.value}"'


@dataclass(frozen=True)
class Silence:
    """What is kept quiet, from when to when, who wants it and why. `id` is empty until Alertmanager has given one."""

    matchers: tuple[Matcher, ...]
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
        """Begin a silence; return its id."""
        return self._ask("POST", "silences", lambda answer: str(answer["silenceID"]), {
            "matchers": [
                {"name": one.name, "value": one.value, "isRegex": one.regex, "isEqual": one.equal}
                for one in silence.matchers
            ],
            "startsAt": silence.starts.isoformat(), "endsAt": silence.ends.isoformat(),
            "createdBy": silence.by, "comment": silence.why,
        })  # fmt: skip

    def current(self) -> list[Silence]:
        """Return what is silent now or will be, the next to end first."""
        found = self._ask("GET", "silences", _silences)
        return sorted(
            (each for each in found if each.state != "expired"), key=lambda silence: (silence.ends, silence.id)
        )

    def expire(self, silence_id: str) -> None:
        """End a silence now."""
        self._ask("DELETE", f"silence/{urllib.parse.quote(silence_id, safe='')}", _nothing)

    def _ask(self, method: str, path: str, read: Callable[[Any], T], content: Mapping[str, Any] | None = None) -> T:
        """Return what `read` makes of the answer."""
        body = None if content is None else json.dumps(content).encode()
        try:
            answer = ask(
                f"{self._address}/api/v2/{path}", TIMEOUT_SECONDS, method=method, body=body, kind="application/json"
            )
        except HttpError as error:
            raise self._absent(error) from error
        if answer.status >= 400:
            said = " ".join(answer.body[:SAID_BYTES].decode(errors="replace").split()).strip('"')
            said = said or f"{answer.status} {answer.reason}"
            if method == "DELETE" and answer.status in (404, 422, 500):
                raise AlertmanagerError(f"no silence to end by this id ({said}); see --list")
            raise AlertmanagerError(f"Alertmanager at {self.url} refused: {said}")
        try:
            return read(json.loads(answer.body or b"null"))
        except UNREADABLE as error:
            raise self._absent("what answers there does not speak Alertmanager's API") from error

    def _absent(self, reason: object) -> AlertmanagerError:
        return AlertmanagerError(
            f"no Alertmanager at {self.url}: {reason}; give its address with --alertmanager or $ALERTMANAGER_URL"
        )


def _nothing(answer: object) -> None:
    if answer is not None:
        raise TypeError("an answer where there should be none")


def _silences(found: object) -> list[Silence]:
    if not isinstance(found, list):
        raise TypeError("no list of silences")
    return [_silence(one) for one in found]


def _silence(one: Mapping[str, Any]) -> Silence:
    return Silence(
        tuple(Matcher(str(m["name"]), str(m["value"]), m["isRegex"], m.get("isEqual", True)) for m in one["matchers"]),
        _time(one["startsAt"]), _time(one["endsAt"]), str(one["createdBy"]), str(one["comment"]),
        str(one["id"]), one["status"]["state"],
    )  # fmt: skip


def _time(text: str) -> datetime:
    """Read Alertmanager's times; Python 3.10 reads neither its `Z` nor fractions that are not of 3 or 6 digits."""
    return datetime.fromisoformat(text.partition(".")[0].rstrip("Z") + "+00:00")
