"""The comparison of an Alertmanager's configuration with the shipped one: which of our parts it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tachograph.bundle import delivery, routes
from tachograph.bundle.delivery import Undelivered


class MergeError(Exception):
    """A file that is no configuration of Alertmanager; the text says why."""


@dataclass(frozen=True)
class Lack:
    """Missing parts of one place, how many, and the lines that add them."""

    what: str
    lines: str
    count: int = 1


def lacks(path: Path) -> list[Lack]:
    """Return what is missing in a configuration, nothing if it is complete; raise MergeError or OSError."""
    return lacks_in(_read(path), path, path.parent)


def undelivered_by(path: Path) -> list[Undelivered]:
    """Return which of our alerts a configuration does not deliver, and why; raise MergeError or OSError."""
    return undelivered_in(_read(path), path)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return document(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        raise MergeError(f"{path}: not YAML: {error}") from error


def document(text: str, source: object) -> Mapping[str, Any]:
    """Return a configuration of Alertmanager; raise MergeError, which names where the text is from."""
    try:
        theirs = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise MergeError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(theirs, dict) or not isinstance(theirs.get("route"), dict):
        raise MergeError(f"{source}: expected Alertmanager's configuration, with a `route:`")
    return theirs


def lacks_in(theirs: Mapping[str, Any], source: object, folder: Path | None) -> list[Lack]:
    """Return what is missing in a configuration in a folder, without one but for templates; raise MergeError."""
    try:
        templates = [] if folder is None else _templates(folder, theirs)
        return [*templates, *_routes(theirs["route"]), *_inhibitions(theirs)]
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise MergeError(f"{source}: not as Alertmanager wants it: {error}; see amtool check-config") from error


def undelivered_in(theirs: Mapping[str, Any], source: object) -> list[Undelivered]:
    """Return which of our alerts a configuration does not deliver, and why; raise MergeError."""
    try:
        return delivery.undelivered(theirs)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError, re.error) as error:
        raise MergeError(f"{source}: not as Alertmanager wants it: {error}; see amtool check-config") from error


def template_files(folder: Path, theirs: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files that `templates` names, seen from a folder."""
    for pattern in theirs.get("templates") or ():
        yield from (Path("/") if Path(pattern).is_absolute() else folder).glob(str(pattern).lstrip("/"))


def _templates(folder: Path, theirs: Mapping[str, Any]) -> Iterator[Lack]:
    for file in template_files(folder, theirs):
        if 'define "tachograph.subject"' in file.read_text(encoding="utf-8", errors="replace"):
            return
    lines = yaml.safe_dump({"templates": [*(theirs.get("templates") or ()), "templates/*.tmpl"]})
    yield Lack(f"templates: no file that is named there, seen from {folder}, has ours", lines)


def _routes(root: Mapping[str, Any]) -> Iterator[Lack]:
    ours = routes.shipped_configuration()["route"]
    there = [route for route in _every(root) if routes.parsed(routes.COMPONENT) in _matchers(route)]
    if there:
        (route, *_) = there
        where = routes.COMPONENT
    elif root.get("routes") and not list(_missing(root, ours, "")):
        route, where = root, "the root"  # the shipped configuration as a whole
    else:
        lines = routes.dumped({"routes": [{"matchers": [routes.COMPONENT]} | ours]})
        yield Lack(f"route: none has the matcher {routes.COMPONENT}; under `route:`, before all others", lines)
        return
    if set(route.get("group_by") or ()) != set(ours["group_by"]):
        yield Lack(f"route: alerts of {where} are grouped otherwise", routes.dumped({"group_by": ours["group_by"]}))
    under: dict[str, list[Mapping[str, Any]]] = {}
    for parent, child in _missing(route, ours, where):
        under.setdefault(parent, []).append(child)
    for parent, children in under.items():
        named = "; ".join(map(_named, children))
        yield Lack(
            f"route: under {parent} there is none with {named}", routes.dumped({"routes": children}), len(children)
        )


def _missing(route: Mapping[str, Any], ours: Mapping[str, Any], where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield our routes that have no counterpart below a route, each with the one that it belongs under."""
    there = {_matchers(child): child for child in route.get("routes") or ()}
    for child in ours.get("routes") or ():
        if found := there.get(_matchers(child)):
            yield from _missing(found, child, _named(child))
        else:
            yield where, child


def _every(route: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield route
    for child in route.get("routes") or ():
        yield from _every(child)


def _inhibitions(theirs: Mapping[str, Any]) -> Iterator[Lack]:
    there = {_inhibition(rule) for rule in theirs.get("inhibit_rules") or ()}
    missing = [rule for rule in routes.shipped_configuration()["inhibit_rules"] if _inhibition(rule) not in there]
    if missing:
        first, *more = missing
        what = f"inhibit_rules: {_named(first, 'source_')} does not inhibit {_named(first, 'target_')}"
        what += f", and {len(more)} more" if more else ""
        yield Lack(what, routes.dumped({"inhibit_rules": list(map(routes.of_ours, missing))}), len(missing))


Matchers = frozenset[tuple[str, str, str]]


def _inhibition(rule: Mapping[str, Any]) -> tuple[Matchers, Matchers, frozenset[str]]:
    """Return what an inhibition does, whether or not it is limited to our alerts."""
    component = {routes.parsed(routes.COMPONENT)}
    sides = [_matchers(rule, side) - component for side in ("source_", "target_")]
    return sides[0], sides[1], frozenset(rule.get("equal") or ())


def _matchers(holder: Mapping[str, Any], side: str = "") -> Matchers:
    """Return the matchers of a route or of one side of an inhibition, in the older notation as well."""
    found = {routes.parsed(one) for one in holder.get(f"{side}matchers") or ()}
    for operator, key in (("=", f"{side}match"), ("=~", f"{side}match_re")):
        found |= {(name, operator, str(value)) for name, value in (holder.get(key) or {}).items()}
    return frozenset(found)


def _named(holder: Mapping[str, Any], side: str = "") -> str:
    return ", ".join(holder[f"{side}matchers"])
