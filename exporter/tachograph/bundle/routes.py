"""Alertmanager's configuration: as shipped, with a site's kinds of receivers, and as a sub-route for another's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tachograph.files import shipped

COMPONENT = 'component="tachograph"'
"""The matcher of every alert of ours."""

PAGERS, CHATS = ("pagerduty", "opsgenie"), ("slack", "teams", "telegram", "discord")
SERVED_BY: Mapping[str, Sequence[Sequence[str]]] = MappingProxyType(
    {
        "page": (("webhook", *PAGERS, *CHATS), ("email",)),
        "escalation": (("webhook", *PAGERS), CHATS, ("email",)),
        "ticket": (("webhook", "email"), CHATS, PAGERS),
        "chat": (("webhook", *CHATS), ("email",), PAGERS),
    }
)
"""Receiver -> kinds that may notify it, the best first: those of the first group with a chosen one do. A pager gets
tickets and runs of the tier dev only if nothing else was chosen."""
KINDS = sorted({kind for groups in SERVED_BY.values() for group in groups for kind in group})

NEEDS: Mapping[str, str] = MappingProxyType({"teams": "0.28", "discord": "0.28", "telegram": "0.26"})
"""The first version of Alertmanager that takes our configuration of a kind, where that is not the oldest one, 0.25."""

_HEADER = """\
# For an Alertmanager that has other alerts, too: merge these four parts into its configuration, the route before all
# others. `tachograph bundle --check` says what is missing then. Names that are taken there need others here.
"""


def kinds_of(receiver: str, chosen: Sequence[str]) -> list[str]:
    """Return which of the chosen kinds notify a receiver."""
    served = ([kind for kind in chosen if kind in group] for group in SERVED_BY[receiver])
    return next(kinds for kinds in served if kinds)


def woken_for(chosen: Sequence[str]) -> list[str]:
    """Return the receivers that a pager serves although they are none of a page: nothing else was chosen."""
    return [name for name in ("ticket", "chat") if chosen and set(kinds_of(name, chosen)) <= set(PAGERS)]


def shipped_configuration() -> dict[str, Any]:
    """Return the shipped configuration."""
    return shipped.read_yaml(_folder() / "alertmanager.yml")


def configuration(chosen: Sequence[str]) -> str:
    """Return the whole configuration with receivers of the chosen kinds; as shipped where none is chosen."""
    text = (_folder() / "alertmanager.yml").read_text(encoding="utf-8")
    if not chosen:
        return text
    head, _, _ = text.partition("\nreceivers:\n")
    return head + "\n" + dumped({"receivers": _receivers(chosen)})


def subroute(chosen: Sequence[str]) -> str:
    """Return the configuration of an Alertmanager that sends nothing but our alerts."""
    ours = shipped_configuration()
    route = {"matchers": [COMPONENT]} | ours["route"]
    parts = {
        "templates": ours["templates"],
        "route": {"receiver": "null", "routes": [route]},
        "inhibit_rules": [of_ours(rule) for rule in ours["inhibit_rules"]],
        "receivers": _receivers(chosen) if chosen else ours["receivers"],
    }
    return _HEADER + dumped(parts)


def of_ours(inhibition: Mapping[str, Any]) -> dict[str, Any]:
    """Return an inhibition that neither silences others' alerts nor is caused by them."""
    sides = ("source_matchers", "target_matchers")
    return {**inhibition, **{side: [COMPONENT, *inhibition[side]] for side in sides}}


_ONE = r"""\s*([\w.:-]+)\s*(=~|!~|!=|=)\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",{}]*))\s*"""


def parsed(matcher: str) -> tuple[str, str, str]:
    """Return name, operator and value of a matcher; raise ValueError."""
    found = re.fullmatch(_ONE, matcher)
    if not found:
        raise ValueError(f"{matcher!r} is not a matcher")
    quoted = None if found[3] is None else re.sub(r'\\(["\\])', r"\1", found[3])
    return found[1], found[2], found[4] if quoted is None else quoted


@cache
def all_parsed(text: str) -> tuple[tuple[str, str, str], ...]:
    """Return the matchers of a text, of which there may be several, as `{a="b", c=~"d|e"}`; raise ValueError."""
    inside = text.strip()
    if inside[:1] == "{" and inside[-1:] == "}":
        inside = inside[1:-1]
    found, place = [], 0
    while place < len(inside.rstrip(", ")):
        one = re.compile(_ONE).match(inside, place)
        if one is None or inside[one.end() : one.end() + 1] not in ("", ","):
            raise ValueError(f"{text!r} is not a matcher")
        found.append(parsed(one[0]))
        place = one.end() + 1
    return tuple(found)


_KEYS = {"teams": "msteamsv2_configs"}


def _receivers(chosen: Sequence[str]) -> list[dict[str, Any]]:
    """Return a receiver of each name that the routes know; the watchdog's and the empty one as in the examples."""
    examples: dict[str, dict[str, Any]] = {}
    for file in ("receivers", "more-receivers"):
        for one in shipped.read_yaml(_folder() / f"examples/{file}.yml")["receivers"]:
            examples[one["name"]] = examples.get(one["name"], {}) | one
    plain = {one["name"]: one for one in shipped_configuration()["receivers"]}
    found = []
    for name in plain:
        if name in ("watchdog", "null"):
            found.append(examples[name])
            continue
        made: dict[str, Any] = {"name": name}
        for kind in kinds_of(name, chosen):
            key = _KEYS.get(kind, f"{kind}_configs")
            made[key] = plain[name][key] if kind == "webhook" else _example(examples, name, key)
        found.append(made)
    return found


def _example(examples: Mapping[str, Mapping[str, Any]], name: str, key: str) -> object:
    """Return the example of this receiver, else that of the first one with such a configuration."""
    return next(one[key] for one in (examples[name], *examples.values()) if key in one)


def _folder() -> Path:
    return shipped.folder() / "alertmanager"


_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_SafeDumper):  # type: ignore[misc]
    """Writes every use of a value in full, and a text of several lines as such."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text_node)


def dumped(document: object) -> str:
    """Return a document as YAML, in the order of its keys and without anchors."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
