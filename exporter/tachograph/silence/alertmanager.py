"""The silences of an Alertmanager, over its API (v2, the same since 0.16)."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

TIMEOUT_SECONDS = 10.0


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
        self.url = url.rstrip("/")

    def add(self, silence: Silence) -> str:
        """Begin a silence; return its id."""
        answer = self._ask("POST", "silences", {
            "matchers": [
                {"name": one.name, "value": one.value, "isRegex": one.regex, "isEqual": one.equal}
                for one in silence.matchers
            ],
            "startsAt": silence.starts.isoformat(), "endsAt": silence.ends.isoformat(),
            "createdBy": silence.by, "comment": silence.why,
        })  # fmt: skip
        return str(answer["silenceID"])

    def current(self) -> list[Silence]:
        """Return what is silent now or will be, the next to end first."""
        found = [_silence(one) for one in self._ask("GET", "silences") if one["status"]["state"] != "expired"]
        return sorted(found, key=lambda silence: (silence.ends, silence.id))

    def expire(self, silence_id: str) -> None:
        """End a silence now."""
        self._ask("DELETE", f"silence/{urllib.parse.quote(silence_id, safe='')}")

    def _ask(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401  (JSON)
        body = None if content is None else json.dumps(content).encode()
        try:
            request = urllib.request.Request(
                f"{self.url}/api/v2/{path}", body, {"Content-Type": "application/json"}, method=method
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            said = " ".join(error.read().decode(errors="replace").split()).strip('"')
            if method == "DELETE" and error.code in (404, 422, 500):
                raise AlertmanagerError(f"no silence to end by this id ({said or error}); see --list") from error
            raise AlertmanagerError(f"Alertmanager at {self.url} refused: {said or error}") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise AlertmanagerError(
                f"no Alertmanager at {self.url}: {reason}; give its address with --alertmanager or $ALERTMANAGER_URL"
            ) from error


def _silence(one: Mapping[str, Any]) -> Silence:
    return Silence(
        tuple(Matcher(m["name"], m["value"], m["isRegex"], m.get("isEqual", True)) for m in one["matchers"]),
        _time(one["startsAt"]), _time(one["endsAt"]), one["createdBy"], one["comment"],
        one["id"], one["status"]["state"],
    )  # fmt: skip


def _time(text: str) -> datetime:
    """Read Alertmanager's times; Python 3.10 reads neither its `Z` nor fractions that are not of 3 or 6 digits."""
    return datetime.fromisoformat(text.partition(".")[0].rstrip("Z") + "+00:00")
