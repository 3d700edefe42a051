"""Reads a scenario file into a `Scenario` and reports all mistakes in it at once, with their line numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from tachograph_lab.scenario.checks import ScenarioProblem, check
from tachograph_lab.scenario.definition import Expected, Fleet, Scenario, ScenarioError, Tolerated
from tachograph_lab.scenario.faults import FAULTS, Fault

Made = TypeVar("Made")
Pairs = dict[str, tuple[yaml.Node, yaml.Node]]

_PLACE_KEYS = {
    "rank": ("rank",),
    "ranks": ("rank", "ranks", "node", "nodes"),
    "node": ("node",),
    "nodes": ("node", "nodes"),
}
"""The keys that give each kind of place; exactly one is given."""

_LISTS = ("faults", "expect", "may")
_NOT_LIVE = ("incident", "title", "story", "live")
_NOT_OF_A_RUN = (*_NOT_LIVE, "lasts", "scrape", "evaluation", "node_exporter", "runs", "expect", "may")
"""The keys that another run of the cluster does not have."""


class _UnreadableError(Exception):
    """A node could not be read; the mistake is already recorded."""


def load(path: Path | str) -> Scenario:
    """Read a scenario file; raise ScenarioError with every mistake in it."""
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as stream:
            root = yaml.compose(stream, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError([f"{path}: cannot be read ({error}); give the path of a scenario file"]) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ScenarioError([f"{path}:{line}: not YAML: {error.problem}; docs/scenarios.md has the format"]) from error
    if not isinstance(root, yaml.MappingNode):
        raise ScenarioError([f"{path}:1: not a mapping; allowed: {', '.join(_top_keys())}"])
    reading = _Reading(path)
    scenario = reading.whole(root)
    if reading.lines or scenario is None:
        raise ScenarioError([text for _, text in sorted(set(reading.lines))])
    return scenario


def _top_keys() -> list[str]:
    return [_key(part) for part in fields(Scenario) if part.name != "path"]


def _parts(kind: type[Any]) -> list[Field[Any]]:
    """Return the fields of a section that a file can give."""
    return [part for part in fields(kind) if part.metadata]


def _key(part: Field[Any]) -> str:
    key: str = part.metadata.get("key", part.name)
    return key


class _Reading:
    """One file being read, and the mistakes found in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[tuple[int, str]] = []

    def wrong(self, node: yaml.Node, what: str, allowed: str) -> None:
        """Record what is wrong at a node and what is allowed there."""
        line = node.start_mark.line + 1
        self.lines.append((line, f"{self.path}:{line}: {what}; {allowed}"))

    def whole(self, root: yaml.MappingNode) -> Scenario | None:
        """Read the scenario and its variant for real time, if it has one."""
        pairs = self.pairs(root, _top_keys())
        live = pairs.pop("live", None)
        scenario = self.scenario(pairs, root)
        if live is None:
            return scenario
        if not isinstance(live[1], yaml.MappingNode):
            self.wrong(live[1], "`live` is not a mapping", "give what is replaced, such as {fleet: {nodes: 4}}")
            return scenario
        for key, (node, _) in self.pairs(live[1], _top_keys()).items():
            if key in _NOT_LIVE:
                self.wrong(node, f"`live` cannot change `{key}`", "remove it")
        changed = self.variant("live", partial(self.scenario, _merged(pairs, live[1]), root))
        return replace(scenario, live=changed) if scenario else None

    def variant(self, name: str, read: Callable[[], Made]) -> Made:
        """Read a variant of the scenario; mistakes that are only in it are reported as its own."""
        found, self.lines = self.lines, []
        made = read()
        own = [(line, text) for line, text in self.lines if (line, text) not in found]
        self.lines = found + [(line, text.replace(": ", f": {name}: ", 1)) for line, text in own]
        return made

    def scenario(self, pairs: Pairs, root: yaml.Node) -> Scenario | None:
        """Read everything except `live`: the first run, and the others of its cluster."""
        shared = {key: pair for key, pair in pairs.items() if key not in _NOT_OF_A_RUN}
        changes = [node for node in map(self.other_run, self.items(pairs.get("runs"))) if node is not None]
        others = [_merged(shared, node) for node in changes]
        timed = {key: pairs[key] for key in ("title", "story", "lasts") if key in pairs}
        cluster = max(map(self.nodes_up_to, [pairs, *others]))
        runs = []
        for number, (node, other) in enumerate(zip(changes, others, strict=True), start=1):
            run = self.variant("runs", partial(self.run, other | timed, root, cluster))
            if run is not None:
                has_seed = any(key.value == "seed" for key, _ in node.value)
                runs.append(run if has_seed else replace(run, seed=run.seed + number))
        return self.run(pairs, root, cluster, tuple(runs))

    def other_run(self, node: yaml.Node) -> yaml.MappingNode | None:
        """Return an entry of `runs`; record what it cannot have, and return None then."""
        allowed = [key for key in _top_keys() if key not in _NOT_OF_A_RUN]
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, "not a mapping", "give what differs from the first run, such as {fleet: {run: other}}")
            return None
        return node if len(self.pairs(node, allowed)) == len(node.value) else None

    def nodes_up_to(self, pairs: Pairs) -> int:
        """Return how many nodes a cluster must have for a run, 0 if its fleet cannot be read."""
        found = [*self.lines]
        fleet = self.section(pairs["fleet"][1], Fleet) if "fleet" in pairs else None
        self.lines = found
        return 0 if fleet is None else fleet.first_node + fleet.nodes

    def run(self, pairs: Pairs, root: yaml.Node, cluster: int, runs: tuple[Scenario, ...] = ()) -> Scenario | None:
        """Read one run, and check that the parts that could be read fit together."""
        if "fleet" not in pairs:
            self.wrong(root, "`fleet` is missing", "give the number of nodes: {nodes: 4}")
        fleet = self.section(pairs["fleet"][1], Fleet) if "fleet" in pairs else None
        if fleet is not None and cluster > fleet.first_node + fleet.nodes:
            fleet = replace(fleet, cluster_nodes=cluster)
        nodes: dict[str, list[yaml.Node]] = {}
        read: dict[str, Any] = {"path": self.path, "runs": runs}
        for part in _LISTS:
            entries = [(node, self.entry(part, node, fleet)) for node in self.items(pairs.get(part))]
            read[part] = tuple(entry for _, entry in entries if entry is not None)
            nodes[part] = [node for node, entry in entries if entry is not None]
        rest = {key: pair for key, pair in pairs.items() if key not in (*_LISTS, "fleet")}
        read |= self.values(rest, root, Scenario, skip=(*_LISTS, "fleet", "path", "live", "runs"))
        if fleet is None:
            return None
        unread: dict[str, Any] = {"title": "", "story": "", "lasts": math.inf}
        scenario = Scenario(fleet=fleet, **(unread | read))
        for problem in check(scenario, faults=len(self.items(pairs.get("faults")))):
            self.note(problem, nodes, pairs, root)
        return scenario

    def note(
        self, problem: ScenarioProblem, nodes: Mapping[str, list[yaml.Node]], pairs: Pairs, root: yaml.Node
    ) -> None:
        """Record a problem at the line of its entry."""
        if problem.entry is not None:
            at = nodes[problem.part][problem.entry]
        else:
            at = pairs[problem.part][0] if problem.part in pairs else root
        self.wrong(at, problem.what, problem.allowed)

    def pairs(self, node: yaml.MappingNode, known: list[str]) -> Pairs:
        """Return a mapping's keys and values; record unknown and repeated keys."""
        found: Pairs = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name not in known:
                self.wrong(key, f"unknown key `{name}`", "allowed: " + ", ".join(known))
            elif name in found:
                self.wrong(key, f"`{name}` is given twice", "give it once")
            else:
                found[name] = (key, value)
        return found

    def items(self, pair: tuple[yaml.Node, yaml.Node] | None) -> list[yaml.Node]:
        """Return the entries of an optional list."""
        if pair is None:
            return []
        if not isinstance(pair[1], yaml.SequenceNode):
            self.wrong(pair[1], "not a list", "each entry begins with `- {`")
            return []
        return list(pair[1].value)

    def entry(self, part: str, node: yaml.Node, fleet: Fleet | None) -> Fault | Tolerated | None:
        """Read one entry of `faults`, `expect` or `may`; None if it cannot be read."""
        if part != "faults":
            return self.section(node, Expected if part == "expect" else Tolerated)
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, "not a mapping", "give one such as {fault: freeze, at: 5m, rank: 3}")
            return None
        words = [value.value for key, value in node.value if getattr(key, "value", "") == "fault"]
        kind = FAULTS.get(str(words[0])) if words else None
        if kind is None:
            what = f"unknown fault `{words[0]}`" if words else "`fault` is missing"
            self.wrong(node, what, "allowed: " + ", ".join(FAULTS))
            return None
        return self.fault(node, kind, fleet)

    def fault(self, node: yaml.MappingNode, kind: type[Fault], fleet: Fleet | None) -> Fault | None:
        """Read one fault: its parameters and its place in the fleet."""
        before = len(self.lines)
        places = {part.name: part.metadata["place"] for part in fields(kind) if "place" in part.metadata}
        sized = [part for part in fields(kind) if "read" in part.metadata]
        sizes = [_key(part) for part in sized if kind.lasting or part.name != "lasts"]
        where = [key for place in places.values() for key in _PLACE_KEYS[place]]
        pairs = self.pairs(node, ["fault", *sizes, *where])
        pairs.pop("fault")
        given_places = {key: pairs.pop(key)[1] for key in where if key in pairs}
        if kind.one_of and sum(key in pairs for key in kind.one_of) != 1:
            self.wrong(node, f"`{kind.word}` needs exactly one size", "give one of " + ", ".join(kind.one_of))
        if places and len(given_places) != 1:
            self.wrong(node, f"`{kind.word}` needs exactly one place", "give one of " + ", ".join(where))
        given = self.values(pairs, node, kind, skip=tuple(places))
        if fleet is not None and len(given_places) == 1:
            key, value = next(iter(given_places.items()))
            for name, place in places.items():
                found = self.place(key, value, place, fleet)
                given[name] = found if place.endswith("s") else next(iter(found), 0)
        return kind(**given) if len(self.lines) == before and fleet is not None else None

    def place(self, key: str, node: yaml.Node, place: str, fleet: Fleet) -> tuple[int, ...]:
        """Return the ranks or nodes that a key names."""
        by_rank = key.startswith("rank")
        every = fleet.ranks if by_rank else fleet.nodes
        several = key.endswith("s")
        index = {str(rank) if by_rank else fleet.node_name(rank): rank for rank in range(every)}
        names = list(index)
        if several and isinstance(node, yaml.ScalarNode) and node.value == "all":
            entries: list[yaml.Node] = []
            found = set(range(every))
        else:
            entries = node.value if several and isinstance(node, yaml.SequenceNode) else [node]
            found = set()
        for entry in entries:
            name = entry.value if isinstance(entry, yaml.ScalarNode) else "a list"
            if name in index:
                found.add(index[name])
            else:
                allowed = f"allowed: {names[0]} to {names[-1]}" + (", several as a list, or all" if several else "")
                self.wrong(entry, f"{'rank' if by_rank else 'node'} {name} is outside the fleet", allowed)
        if place == "ranks" and not by_rank:
            return tuple(n * fleet.gpus_per_node + gpu for n in sorted(found) for gpu in range(fleet.gpus_per_node))
        return tuple(sorted(found))

    def section(self, node: yaml.Node, kind: type[Made]) -> Made | None:
        """Read a mapping as a dataclass; None if it cannot be read."""
        before = len(self.lines)
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, "not a mapping", "allowed: " + ", ".join(map(_key, _parts(kind))))
            return None
        pairs = self.pairs(node, [*map(_key, _parts(kind))])
        given = self.values(pairs, node, kind)
        return kind(**given) if len(self.lines) == before else None

    def values(self, pairs: Pairs, node: yaml.Node, kind: type[Any], skip: tuple[str, ...] = ()) -> dict[str, Any]:
        """Read the fields of a dataclass from a mapping; record missing ones."""
        given: dict[str, Any] = {}
        for part in fields(kind):
            if part.name in skip or (not part.metadata and part.default is not MISSING):
                continue
            if _key(part) in pairs:
                try:
                    given[part.name] = self.value(pairs[_key(part)][1], part)
                except _UnreadableError:
                    continue
            elif part.default is MISSING and part.default_factory is MISSING:
                self.wrong(node, f"`{_key(part)}` is missing", "it is required")
        return given

    def value(self, node: yaml.Node, part: Field[Any]) -> object:
        """Read the value of one field."""
        if "section" in part.metadata:
            made = self.section(node, part.metadata["section"])
            if made is None:
                raise _UnreadableError
            return made
        if "texts" in part.metadata:
            return self.texts(node, part)
        if "each" in part.metadata:
            return self.several(node, part)
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(node, f"`{_key(part)}` is not a single value", "give one")
            raise _UnreadableError
        return self.scalar(node, part, part.metadata["read"])

    def several(self, node: yaml.Node, part: Field[Any]) -> object:
        """Read a list of values, or a word that stands for one."""
        words = part.metadata["words"]
        if isinstance(node, yaml.ScalarNode) and node.value in words:
            return words[node.value]
        if not isinstance(node, yaml.SequenceNode) or not all(isinstance(each, yaml.ScalarNode) for each in node.value):
            self.wrong(node, f"`{_key(part)}` has the wrong form", "allowed: " + ", ".join([*words, "a list"]))
            raise _UnreadableError
        return tuple(self.scalar(each, part, part.metadata["each"]) for each in node.value)

    def scalar(self, node: yaml.ScalarNode, part: Field[Any], read: Callable[[str], object]) -> object:
        """Read a single value."""
        try:
            value = read(node.value)
        except ValueError as error:
            self.wrong(node, f"`{_key(part)}` is {node.value!r}", f"allowed: {error}")
            raise _UnreadableError from error
        return value

    def texts(self, node: yaml.Node, part: Field[Any]) -> tuple[str, ...] | Mapping[str, str]:
        """Read a list of texts, or a mapping of texts."""
        if part.metadata["texts"] == "list" and isinstance(node, yaml.SequenceNode):
            return tuple(str(entry.value) for entry in node.value)
        if part.metadata["texts"] == "mapping" and isinstance(node, yaml.MappingNode):
            return {str(key.value): str(value.value) for key, value in node.value}
        allowed = 'a list of texts: [thermal, "84"]' if part.metadata["texts"] == "list" else 'labels: {rank: "3"}'
        self.wrong(node, f"`{_key(part)}` has the wrong form", f"allowed: {allowed}")
        raise _UnreadableError


def _merged(pairs: Pairs, changes: yaml.MappingNode) -> Pairs:
    """Merge changes into a mapping: mappings key by key, everything else is replaced, `none` removes a key."""
    merged = dict(pairs)
    for key, value in changes.value:
        if isinstance(value, yaml.ScalarNode) and value.value == "none":
            merged.pop(key.value, None)
            continue
        old = merged.get(key.value)
        if old is not None and isinstance(old[1], yaml.MappingNode) and isinstance(value, yaml.MappingNode):
            inner = {str(name.value): (name, entry) for name, entry in old[1].value}
            both = list(_merged(inner, value).values())
            value = yaml.MappingNode(value.tag, both, value.start_mark, value.end_mark)  # noqa: PLW2901
        merged[key.value] = (key, value)
    return merged
