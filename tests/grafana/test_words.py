"""Titles, columns, legends, states and units in the words of an engineer who reads them at night."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

Json = dict[str, Any]

REFUSED = {
    r"\bthat (?:are|differ|ended|fail|page|stand|wait)\b|\bwhose\b|\bwhom\b": "an adjective: runs with a page",
    r"\bheld\b": "throttled, allocated",
    r", the \w+(?: \w+)? first\b": ", worst first",
    r"\bleast visible\b": "worst visibility",
    r"\btaken out of use\b|\bworn out\b": "remapped, retired",
    r"\bon the way\b": "undelivered",
    r"\b(?:degrees|memory) left\b": "headroom, available",
    r"\ba (?:second|minute)\b": "per second, per minute",
    r"\b(\w+) by \1\b": "by rank, by node",
    r"\bby the clock\b": "wall-clock",
    r"\bstarted again\b": "restarts",
    r"\bhangs\b": "hung",
    r"\bof (?:a GPU|its baseline|each rank)\b": "per GPU, vs baseline",
    r"\b(?:cps|cpm|c/s|c/m)\b": "frames/s, errors/min",
    r"^(?:fine|do|named as|answers?)$": "ok, action, verdict, up",
}
"""What is refused, in any case -> what to write instead."""


def words(panel: Json) -> Iterator[str]:
    """Yield all short texts that stand in a panel without a click."""
    yield panel["title"]
    defaults = panel["fieldConfig"]["defaults"]
    yield defaults["unit"]
    for transformation in panel["transformations"]:
        yield from transformation["options"].get("renameByName", {}).values()
    for target in panel["targets"]:
        yield target["legendFormat"]
        yield from re.findall(r'"(?:line|verdict|what)", "([^"$]+)"', target["expr"])
    for row in [{"id": "mappings", "value": defaults.get("mappings", [])}] + [
        row for override in panel["fieldConfig"]["overrides"] for row in override["properties"]
    ]:
        if row["id"] == "unit":
            yield row["value"]
        for mapping in row["value"] if row["id"] == "mappings" else ():
            yield from (str(each.get("text", "")) for each in mapping["options"].values() if isinstance(each, dict))


def refused(text: str) -> list[str]:
    """Return what to write instead of the refused words of a text."""
    return [instead for phrase, instead in REFUSED.items() if re.search(phrase, text, re.IGNORECASE)]


def test_short_texts_are_an_engineers(panels: list[Json]) -> None:
    """No relative clause in a title, no metaphor, and the terms that a person would search for."""
    found = {f"{panel['title']}: {text!r}": to for panel in panels for text in words(panel) if (to := refused(text))}
    assert not found


@pytest.mark.parametrize(
    "text",
    ["Runs that page", "Degrees left", "Memory taken out of use", "GPU readers that ended", "Alerts lost on the way",
     "Nodes, the least visible first", "What the ranks that stand out do", "Clocks held down, and why", "cps"],
)  # fmt: skip
def test_words_that_stopped_a_reader_are_found(text: str) -> None:
    """The check can fail."""
    assert refused(text)
