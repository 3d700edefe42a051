"""Which alerts can fire for a user of each way in, and which calls the others need: a section of docs/pages.md.

An expression can bring something if each side can that it cannot do without: both of `and` and of arithmetic, one of
`or`, the left of `unless`. What exporters show by themselves is there; what a rank gives is declared in `ways_in`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, combinations
from typing import Any, NamedTuple

import promql_parser as p

from tachograph.catalog.index import BY_NAME, INFO
from tachograph.catalog.metric import TRAIN_PREFIX
from tools.pages.section import with_sections
from tools.pages.shipped_rules import shipped_rules
from tools.pages.ways_in import ATTACH, MORE, NOT_PLAYED, RESTS_ON, SOURCES, WAYS, Source

_MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    "Equal": str.__eq__,
    "NotEqual": str.__ne__,
    "Re": lambda value, pattern: bool(re.fullmatch(pattern, value)),
    "NotRe": lambda value, pattern: not re.fullmatch(pattern, value),
}
_YES = "yes"
Matchers = frozenset[tuple[str, str, str]]
"""Label, operator and value."""


class Selected(NamedTuple):
    """A metric or a recorded series, with the matchers of its selector and of those that read what comes of it."""

    name: str
    matchers: Matchers


class Parts(NamedTuple):
    """The parts of an expression, and how many of them must bring something: `any` or `all`."""

    enough: Callable[[Iterable[bool]], bool]
    parts: tuple[Parts | Selected, ...]


def pages_page() -> str:
    """Return docs/pages.md with a list of the alerts that some way in cannot bring by itself, and what they take."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for alert in sorted(name for name in _rules() if ":" not in name):
        rows.setdefault(tuple(_cell(alert, way) for way in WAYS), []).append(alert)
    rows.pop((_YES,) * len(WAYS))
    return with_sections(
        "docs/pages.md",
        {"ways": "\n".join(f"- {', '.join(alerts)}: {'; '.join(_takes(cells))}" for cells, alerts in rows.items())},
    )


def _takes(cells: tuple[str, ...]) -> Iterator[str]:
    """Yield each call with the ways in that need it."""
    needed: dict[str, list[str]] = {}
    for way, cell in zip(WAYS.values(), cells, strict=True):
        if cell != _YES:
            needed.setdefault(cell, []).append(way)
    for cell, ways in needed.items():
        yield f"{', '.join(ways) if len(ways) < len(WAYS) else 'all'} {cell}"


def _cell(alert: str, way: str) -> str:
    """Return "yes", or the fewest calls with which the alert can fire."""
    sources = (*SOURCES, *NOT_PLAYED)
    given = tuple(source for source in sources if way in source.ways)
    if possible(alert, given):
        return _YES
    if way == "callback" and _cell(alert, "huggingface") == _YES:
        return ATTACH
    calls = [source for source in sources if source.call]
    for more in chain.from_iterable(combinations(calls, number) for number in range(1, 4)):
        if possible(alert, given + more):
            return ", ".join(dict.fromkeys((way == "run" and one.option) or one.call for one in more))
    raise ValueError(f"{alert} cannot fire under {way}, whatever is called: tools/pages/ways_in.py lacks a metric")


def possible(alert: str, sources: tuple[Source, ...]) -> bool:
    """Return whether an alert can fire where ranks give these metrics."""
    given = {key for source in sources for key in source.given}
    return (alert not in MORE or MORE[alert] in given) and _brings(Selected(alert, frozenset()), sources)


def brings(expression: str, sources: tuple[Source, ...]) -> bool:
    """Return whether an expression can bring something where ranks give these metrics."""
    return _brings(_parts(p.parse(expression), frozenset()), sources)


def _brings(whole: Parts | Selected, sources: tuple[Source, ...]) -> bool:
    offered: dict[str, set[frozenset[str]]] = {}
    for key, values in chain.from_iterable(source.given.items() for source in sources):
        offered.setdefault(TRAIN_PREFIX + key, set()).add(values)
    alive: set[Selected] = set()

    def can(part: Parts | Selected) -> bool:
        if isinstance(part, Parts):
            return part.enough(map(can, part.parts))
        return part in alive or (part.name not in _rules() and _offers(part, offered))

    read = _read(whole)
    while fresh := [one for one in read if one not in alive and any(map(can, _recorded(one)))]:
        alive.update(fresh)
    return can(whole)


def _offers(selected: Selected, offered: Mapping[str, Collection[frozenset[str]]]) -> bool:
    """Return whether a rank gives this metric with such a value of its own label; exporters show theirs."""
    name = re.sub(r"_(count|sum|bucket)$", "", selected.name)
    if name in RESTS_ON:
        unit = frozenset(each for each in selected.matchers if each[0] in ("unit", "name"))
        asked = {value: key for value, key in RESTS_ON[name].items() if _fits(value, unit)}
        return any(not of or value in of for value, key in asked.items() for of in offered.get(TRAIN_PREFIX + key, ()))
    if not name.startswith(TRAIN_PREFIX) or BY_NAME[name].kind == INFO:
        return True
    own = frozenset(each for each in selected.matchers if each[0] == BY_NAME[name].own_label)
    return any(not values or any(_fits(value, own) for value in values) for values in offered.get(name, ()))


def _fits(value: str, matchers: Matchers) -> bool:
    return all(_MATCHES[operator](value, wanted) for _, operator, wanted in matchers)


@cache
def _rules() -> Mapping[str, list[dict[str, Any]]]:
    """Return every alert and every recording by name; what is recorded from dcgm-exporter is a metric."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rule in shipped_rules():
        if (name := rule.get("alert") or rule["record"]) not in BY_NAME:
            found.setdefault(name, []).append(rule)
    return found


@cache
def _read(whole: Parts | Selected) -> Collection[Selected]:
    """Return what is read of recorded series and alerts, through however many of them."""
    found: dict[Selected, None] = {}
    parts = [whole]
    while parts:
        part = parts.pop()
        if isinstance(part, Parts):
            parts += part.parts
        elif part.name in _rules() and part not in found:
            found[part] = None
            parts += _recorded(part)
    return found


@cache
def _recorded(selected: Selected) -> list[Parts | Selected]:
    """Return the expressions of the rules of a name, as far as they can have such labels."""
    rules = _rules()[selected.name]
    return [_labelled(rule.get("labels", {}), p.parse(rule["expr"]), selected.matchers) for rule in rules]


def _labelled(fixed: Mapping[str, str], node: Any, matchers: Matchers) -> Parts | Selected:
    """Return the parts of an expression whose result gets these labels; none fits if a label does not."""
    if not all(_fits(fixed[each[0]], frozenset({each})) for each in matchers if each[0] in fixed):
        return Parts(any, ())
    return _parts(node, frozenset(each for each in matchers if each[0] not in fixed))


def _parts(node: Any, matchers: Matchers) -> Parts | Selected:  # noqa: PLR0911 - a case for each kind of node
    if isinstance(node, p.MatrixSelector):
        node = node.vector_selector
    if isinstance(node, p.VectorSelector):
        own = {(each.name, str(each.op).rpartition(".")[2], each.value) for each in node.matchers.matchers}
        return Selected(node.name or "", matchers | own)
    if isinstance(node, p.BinaryExpr):
        if str(node.op) == "unless":
            return _parts(node.lhs, matchers)
        if str(node.op) == "or":
            return Parts(any, (_parts(node.lhs, matchers), _parts(node.rhs, matchers)))
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is not None and str(matching).startswith("on"):  # the result's labels are those of the left side
            shared = frozenset(each for each in matchers if each[0] in matching.labels)
            return Parts(all, (_parts(node.lhs, matchers), _parts(node.rhs, shared)))
        return Parts(all, (_parts(node.lhs, matchers), _parts(node.rhs, matchers)))
    if isinstance(node, p.Call):
        if node.func.name == "label_replace" and "$" not in node.args[2].val:
            return _labelled({node.args[1].val: node.args[2].val}, node.args[0], matchers)
        if node.func.name == "label_replace":
            return _parts(node.args[0], frozenset(each for each in matchers if each[0] != node.args[1].val))
        return Parts(all, tuple(_parts(each, matchers) for each in node.args if node.func.name != "absent"))
    return _parts(node.expr, matchers) if hasattr(node, "expr") else Parts(all, ())
