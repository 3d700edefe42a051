"""The metrics of its own that a run declares: their names, which `step.log` then takes, and what they mean."""

from __future__ import annotations

import re
from typing import cast

from tachograph.catalog.train import TRAIN_METRICS
from tachograph.client.core.misuse import Misuse
from tachograph.client.core.notice import shown
from tachograph.wire import MAX_DESCRIPTION_BYTES, MAX_OWN_METRICS, cut

_NAME = "[a-z][a-z0-9_]{0,63}"
_USE = "Recorder(metrics=…)"


def own_metrics(given: object, misuse: Misuse) -> dict[str, str]:
    """Return the descriptions by name of at most 16 metrics; what is wrong is noted and left out. Never raises."""
    if given is None:
        return {}
    if not issubclass(type(given), dict):
        misuse.note("wrong_type", _USE, "is ignored: expected a dict of names and descriptions")
        return {}
    found: dict[str, str] = {}
    items = dict.items(cast("dict[object, object]", given))  # dict's own: a subclass may do anything
    for name, text in items:
        if type(name) is not str or not re.fullmatch(_NAME, name):
            word = shown(name)[:40]
            misuse.note("wrong_type", f"{_USE}: {word}", "is no name: expected a-z, then a-z, 0-9 and _, 64 at most")
        elif name in TRAIN_METRICS:
            misuse.note("wrong_type", f"{_USE}: {name}", "is a name of the catalog: log it without declaring it")
        elif len(found) == MAX_OWN_METRICS:
            misuse.note("wrong_type", _USE, f"has more than {MAX_OWN_METRICS} names: the others are ignored")
        else:
            found[name] = _description(name, text, misuse)
    return found


def _description(name: str, text: object, misuse: Misuse) -> str:
    if type(text) is not str:
        misuse.note("wrong_type", f"{_USE}: {name}", "has no description: expected text")
        return ""
    short = cut(text, MAX_DESCRIPTION_BYTES)
    if len(short) < len(text):
        misuse.note("wrong_type", f"{_USE}: {name}", f"is described in more than {MAX_DESCRIPTION_BYTES} bytes: cut")
    return short
