"""A panel without data blames nothing that is not missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tachograph.catalog import index as catalog
from tools.pages.alerts import brings
from tools.pages.ways_in import SOURCES, WAYS

Json = dict[str, Any]

CALL = re.compile(r"(\w+)\([\w …(),.=\"]*\)|\w+_per_\w+")
FREE = {("run", "Validation loss"), ("storage", "Batches ready"), ("storage", "Checkpoint size")}
FREE |= {("run", "Learning rate"), ("storage", "Write rate")}
FREE |= {("run", name) for name in ("Loss scale", "Gradient norm by layer", "Activations by layer", "Update ratio")}
"""Panels of metrics or arguments that no alert needs, so that tools/pages/ways_in.py does not have them, and of the
learning rate, which `watch` gives in the README's loop only because it is called."""


def test_a_panel_names_a_call_only_where_some_way_in_lacks_it(
    dashboard: Json, panels: list[Json], fill: Callable[..., str]
) -> None:
    """Metrics of every integration need no call: if they are absent, the run, its steps or its exporter is missing."""
    for panel in panels:
        words = panel["fieldConfig"]["defaults"].get("noValue", "")
        name = dashboard["uid"].removeprefix("tachograph-"), panel["title"]
        if CALL.search(words) and name not in FREE:
            first, *others = fill(dashboard, panel["targets"][0]["expr"]).split(', "line", ')
            asked = first.removeprefix("label_replace(") if others else first  # of several lines in one query
            ways = [tuple(source for source in SOURCES if way in source.ways) for way in WAYS]
            assert not all(brings(asked, given) for given in ways), f"{name}: {words}"
            assert brings(asked, SOURCES), f"{name}: no call brings it"


def test_a_panel_that_needs_detail_says_so(panels: list[Json]) -> None:
    """What an exporter shows on request alone is missed where nobody asked for it: the panel names the flag."""
    detailed = {row.name for row in catalog.METRICS if row.detail is True}
    for panel in panels:
        asked = {name for one in panel.get("targets", ()) for name in re.findall(r"tachograph_\w+", one["expr"])}
        if asked & detailed:
            words = panel["fieldConfig"]["defaults"]["noValue"] + panel["description"]
            assert re.search(r"--(rank|gpu)\.series=all", words), panel["title"]
