"""The values of a rank's frames that have no type of their own, as far as they have the right type and size."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping

from tachograph.catalog import index as catalog
from tachograph.node.histograms import MOST
from tachograph.node.ranks.series import MAX_LABEL_BYTES
from tachograph.wire import (
    MAX_DESCRIPTION_BYTES,
    MAX_NAME_BYTES,
    MAX_NOTICE_BYTES,
    MAX_NOTICES,
    MAX_OWN_METRICS,
    cut,
    decode_number,
    fits,
)

MAX_FACT_BYTES = 64


class Claims:
    """Reads the values of a rank's frames that have no type of their own; counts those that it drops by reason."""

    def __init__(self, drops: Counter[str]) -> None:
        self._drops = drops

    def fact(self, name: str, value: object) -> str:
        """Return a fact of the training as text; "" if it is none."""
        text = _as_text(value)
        if text is not None and fits(text, MAX_FACT_BYTES) and (name != "tier" or text in ("", *catalog.TIERS)):
            return text
        self._drops["wrong_type"] += 1
        return ""

    def job(self, job: object) -> tuple[str, ...]:
        """Return what names the job, in the order of the labels."""
        if job is not None and not isinstance(job, dict):
            self._drops["wrong_type"] += 1
            job = None
        return tuple(self.text((job or {}).get(name), MAX_NAME_BYTES) for name in catalog.RANK_JOB_INFO.labels[2:])

    def coordinates(self, given: object) -> dict[str, int]:
        """Return the numbers of the dimensions that are known."""
        if given is not None and not isinstance(given, dict):
            self._drops["wrong_type"] += 1
            given = None
        numbers = {name: given[name] for name in catalog.DIMENSIONS if given and given.get(name) is not None}
        known = {name: number for name, number in numbers.items() if type(number) is int and 0 <= number <= MOST}
        self._drops["wrong_type"] += len(numbers) - len(known)
        return known

    def thread(self, given: object) -> int | None:
        """Return the training thread of a process that can leave its stacks."""
        if given is None:
            return None
        thread = given.get("thread") if isinstance(given, dict) else None
        if type(thread) is int and 0 < thread < 2**64:
            return thread
        self._drops["wrong_type"] += 1
        return None

    def own_metrics(self, metrics: object) -> dict[str, str]:
        """Return the descriptions of the metrics that the run declared, by name."""
        if metrics is None:
            return {}
        given = list(metrics.items()) if isinstance(metrics, dict) else [("", None)]
        found = {
            name: text
            for name, text in given[:MAX_OWN_METRICS]
            if name and fits(name, MAX_LABEL_BYTES) and isinstance(text, str) and fits(text, MAX_DESCRIPTION_BYTES)
        }
        self._drops["wrong_type"] += len(given) - len(found)
        return found

    def notices(self, notices: object) -> tuple[str, ...]:
        """Return the notices of a state, at most `MAX_NOTICES`, made printable and cut."""
        given = notices if isinstance(notices, list) else [] if notices is None else [None]
        texts = tuple(cut(each, MAX_NOTICE_BYTES) for each in given[:MAX_NOTICES] if isinstance(each, str))
        self._drops["wrong_type"] += len(given) - len(texts)
        return texts

    def text(self, value: object, longest: int) -> str:
        """Return a text of at most so many bytes; "" if it is none."""
        if value is None:
            return ""
        if isinstance(value, str) and fits(value, longest):
            return value
        self._drops["wrong_type"] += 1
        return ""

    def seconds(self, value: object) -> float:
        """Return a number of seconds, 0 if it is none."""
        if value is None:
            return 0.0
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST:
            return float(value)
        self._drops["wrong_type"] += 1
        return 0.0

    def peak_flops(self, facts: Mapping[str, object]) -> float | None:
        """Return the peak FLOP/s that the training says its device has."""
        if facts.get("peak_flops") is None:
            return None
        try:
            value = decode_number(facts["peak_flops"])
        except (ValueError, OverflowError):
            value = math.nan
        if math.isfinite(value) and value > 0:
            return value
        self._drops["wrong_type"] += 1
        return None


def _as_text(value: object) -> str | None:
    """Return a fact as text, None if it is neither text nor a number that a double can hold."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return format(value, ".15g")
    return None
