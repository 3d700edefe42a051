"""Alertmanager's time intervals: the times at which a route is muted or active."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

_WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MONTHS = tuple(name.lower() for name in calendar.month_name)

Span = tuple[int, int]


@dataclass(frozen=True)
class TimeInterval:
    """A time interval: a moment matches if it is within a span of every part that is given."""

    times: tuple[Span, ...] = ()
    weekdays: tuple[Span, ...] = ()
    days: tuple[Span, ...] = ()
    months: tuple[Span, ...] = ()
    years: tuple[Span, ...] = ()
    location: str = "UTC"

    @classmethod
    def read(cls, section: Mapping[str, Any]) -> TimeInterval:
        """Return one entry of `time_intervals`."""
        times = tuple(
            (_minutes(one["start_time"]), _minutes(one["end_time"]) - 1) for one in section.get("times") or ()
        )
        return cls(
            times=times,
            weekdays=_spans(section.get("weekdays"), _WEEKDAYS),
            days=_spans(section.get("days_of_month")),
            months=_spans(section.get("months"), _MONTHS),
            years=_spans(section.get("years")),
            location=section.get("location") or "UTC",
        )

    def holds(self, unix: float) -> bool:
        """Return whether a moment, in Unix seconds, lies within."""
        moment = datetime.fromtimestamp(unix, timezone.utc).astimezone(ZoneInfo(self.location))
        length = calendar.monthrange(moment.year, moment.month)[1]
        days = tuple(tuple(day if day > 0 else length + 1 + day for day in span) for span in self.days)
        return (
            _within(moment.hour * 60 + moment.minute, self.times)
            and _within(moment.isoweekday() % 7, self.weekdays)
            and _within(moment.day, days)
            and _within(moment.month, self.months)
            and _within(moment.year, self.years)
        )


def _within(value: int, spans: Sequence[Sequence[int]]) -> bool:
    return not spans or any(first <= value <= last for first, last in spans)


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def _spans(given: Sequence[object] | None, names: Sequence[str] = ()) -> tuple[Span, ...]:
    return tuple(_span(str(one).lower(), names) for one in given or ())


def _span(text: str, names: Sequence[str]) -> Span:
    ends = re.split(r":", text)
    numbers = [names.index(end) if end in names else int(end) for end in ends]
    return numbers[0], numbers[-1]
