"""Silences of an Alertmanager."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tachograph.servers.alertmanager_api import Alertmanager, AlertmanagerError, AlertmanagerRefusalError, time_of


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
    """The silences of the Alertmanager at an address. Every method raises AlertmanagerError, as this does."""

    def __init__(self, address: str) -> None:
        self._alertmanager = Alertmanager(address)

    def add(self, silence: Silence) -> str:
        """Create a silence; return its id."""
        return self._alertmanager.ask("POST", "silences", lambda created: str(created["silenceID"]), {
            "matchers": [
                {"name": one.name, "value": one.value, "isRegex": one.regex, "isEqual": one.equal}
                for one in silence.matchers
            ],
            "startsAt": silence.starts.isoformat(), "endsAt": silence.ends.isoformat(),
            "createdBy": silence.by, "comment": silence.why,
        })  # fmt: skip

    def current(self) -> list[Silence]:
        """Return the active and pending silences, the next to end first."""
        found = self._alertmanager.ask("GET", "silences", _silences)
        return sorted(
            (each for each in found if each.state != "expired"), key=lambda silence: (silence.ends, silence.id)
        )

    def expire(self, silence_id: str) -> None:
        """End a silence now."""
        try:
            self._alertmanager.ask("DELETE", f"silence/{urllib.parse.quote(silence_id, safe='')}", _nothing)
        except AlertmanagerRefusalError as refusal:
            if refusal.status in (404, 422, 500):
                raise AlertmanagerError(f"there is no silence with this id ({refusal.reason}); see --list") from refusal
            raise


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
        time_of(one["startsAt"]), time_of(one["endsAt"]), str(one["createdBy"]), str(one["comment"]),
        str(one["id"]), one["status"]["state"],
    )  # fmt: skip


def _matcher(one: Mapping[str, Any]) -> SilenceMatcher:
    return SilenceMatcher(str(one["name"]), str(one["value"]), one["isRegex"], one.get("isEqual", True))
