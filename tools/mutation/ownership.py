"""Whether a rule's expression lets a stranger have a say: ranks that use a run's name without belonging to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import promql_parser as p

from tachograph.catalog import index as catalog
from tools.mutation.mutants import Mutant

STRANGERS = "rank:stranger:info"
STRANGE_NODES = "node:stranger:info"
OWNERSHIP = "ownership.yml"
SEAT = frozenset({"run", "rank", "instance"})
RANKS = {row.name for row in catalog.METRICS if {"run", "rank"} <= set(row.labels)}
MERGED = {
    row.name + end
    for row in catalog.METRICS
    if row.merged and "run" in row.labels
    for end in ("", "_sum", "_count", "_bucket")
}
"""What an exporter adds up over the ranks of a run: it has no rank to leave out, only a node."""


class StrangerHeard(Exception):  # noqa: N818  (what is found, not what went wrong)
    """A verdict that a stranger has a say in."""


def children(node: Any) -> list[Any]:
    """Return the parts of an expression."""
    if isinstance(node, p.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, p.Call):
        return list(node.args)
    if isinstance(node, p.MatrixSelector):
        return [node.vector_selector]
    if isinstance(node, (p.AggregateExpr, p.ParenExpr, p.UnaryExpr, p.SubqueryExpr)):
        return [node.expr]
    return []


def named(node: Any) -> Iterator[str]:
    """Yield the name of every series of an expression."""
    if isinstance(node, p.VectorSelector) and node.name:
        yield node.name
    for part in children(node):
        yield from named(part)


def open_to_strangers(node: Any) -> str:
    """Return a series of this vector that may be a stranger's, "" if there is none.

    Raise StrangerHeard if it went further.
    """
    if isinstance(node, p.VectorSelector):
        return node.name if node.name in RANKS | MERGED else ""
    if isinstance(node, p.Call) and node.func.name == "timestamp":
        return ""  # the moment of the scrape, which is the same for all that a node shows
    if isinstance(node, p.AggregateExpr):
        inner = open_to_strangers(node.expr)
        kept = frozenset(node.modifier.labels if node.modifier is not None else ())
        needed = {"run", "instance"} if inner in MERGED else SEAT
        if inner and not needed <= kept:
            raise StrangerHeard(inner)
        return inner
    if isinstance(node, p.BinaryExpr):
        return _binary(node)
    return next(filter(None, map(open_to_strangers, children(node))), "")


def _binary(node: p.BinaryExpr) -> str:
    left, right = open_to_strangers(node.lhs), open_to_strangers(node.rhs)
    matching = node.modifier.matching if node.modifier else None
    on = frozenset(matching.labels) if matching is not None else SEAT  # without one, all labels are compared
    by_seat = on >= SEAT or (matching is not None and matching.type != p.LabelModifierType.Include)
    operator = str(node.op)
    if operator == "or":
        return left or right
    if operator == "unless":
        gate = STRANGE_NODES if left in MERGED else STRANGERS
        if gate in named(node.rhs) and on >= ({"run", "instance"} if left in MERGED else SEAT):
            return ""
        if right and not by_seat:
            raise StrangerHeard(right)
        return left
    if by_seat and not (_number(node.lhs) or _number(node.rhs)):
        return left if right or left in MERGED else ""  # both sides are needed: the cleaner one decides
    many_right = node.modifier is not None and node.modifier.card == p.VectorMatchCardinality.OneToMany
    many, one = (right, left) if many_right else (left, right)
    if one and not _number(node.lhs):
        raise StrangerHeard(one)
    return many or one


def _number(node: Any) -> bool:
    if isinstance(node, (p.ParenExpr, p.UnaryExpr)):
        return _number(node.expr)
    if isinstance(node, p.BinaryExpr):
        return _number(node.lhs) and _number(node.rhs)
    return isinstance(node, p.NumberLiteral) or (isinstance(node, p.Call) and node.func.name == "time")


def leak(expression: str) -> str:
    """Return the name of a series in which a stranger has a say, or ""."""
    try:
        return open_to_strangers(p.parse(expression))
    except StrangerHeard as found:
        return str(found)


def hears_strangers(mutant: Mutant) -> bool:
    """Return whether a stranger has a say in a changed rule; one that no longer parses is left to promtool."""
    if mutant.key != "expr" or f"{mutant.file}.yml" == OWNERSHIP or mutant.writes == STRANGERS:
        return False
    try:
        return bool(leak(mutant.content))
    except ValueError:
        return False
