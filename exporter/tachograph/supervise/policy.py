"""The policy: what is done about each trigger, how often, after how long; a YAML file whose every fault is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tachograph.catalog.rank import PAUSES
from tachograph.files.yaml_file import YamlFileError, composed
from tachograph.supervise.triggers import TRIGGERS
from tachograph.text import duration
from tachograph.text.humanize import suggestion

if TYPE_CHECKING:
    import yaml

DEFAULT = Path(__file__).with_name("default_policy.yaml")

NOTIFY, KEEP_EVIDENCE = "notify", "keep_evidence"
RESTART, RESTART_FROM_CHECKPOINT, EXCLUDE_NODE = "restart", "restart_from_checkpoint", "exclude_node"
SKIP_BATCHES, LOWER_RATE = "skip_batches", "lower_rate"
STOP, LEAVE = "stop", "leave"
FIRST, ENDS = (NOTIFY, KEEP_EVIDENCE), (STOP, LEAVE)
CHANGES = (SKIP_BATCHES, LOWER_RATE)
"""Restarts that change what is trained: what came before the same failure does not come again."""
ROLLBACKS = (RESTART_FROM_CHECKPOINT, *CHANGES)
RESTARTS = (RESTART, *ROLLBACKS, EXCLUDE_NODE)
ACTIONS = (*FIRST, *RESTARTS, *ENDS)

MOST_PER_HOUR, MOST_PER_RUN = 20, 100
"""A budget beyond this bounds nothing: a restart takes minutes of every GPU."""

LONGEST_NUMBER = 9
"""Digits of a budget: int() refuses thousands of them."""

LONGEST = 86_400.0
"""Of a wait, a cool-down or an excuse: a day."""


class PolicyError(Exception):
    """The policy is invalid; `faults` has one line for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(faults))


@dataclass(frozen=True)
class Budget:
    """The restarts that are allowed within any hour, and since the run began."""

    per_hour: int
    per_run: int


@dataclass(frozen=True)
class Rule:
    """The actions for a trigger that has lasted for `wait` seconds, `cool_down` seconds after a restart at least.

    `first` is done each time; then the first of `restarts` within its budget, else `end`. A person is asked before
    those that are `asked`, whatever the mode.
    """

    wait: float
    cool_down: float
    first: tuple[str, ...]
    restarts: Mapping[str, Budget]
    end: str
    asked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Policy:
    """The rules by trigger, the budget of all restarts together, and for how long a phase excuses a rank.

    `time_left` is for how many seconds a job must still have its nodes, or else nothing is restarted.
    """

    restarts: Budget
    excuses: Mapping[str, float]
    rules: Mapping[str, Rule]
    time_left: float = 0.0


def read(path: Path) -> Policy:
    """Return the policy of a file; raise PolicyError."""
    try:
        root = composed(path)
    except OSError as error:
        raise PolicyError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    except YamlFileError as error:
        raise PolicyError([str(error)]) from error
    reader = _Reader(path)
    policy = reader.policy(root) if root is not None else None
    if policy is None or reader.faults:
        raise PolicyError(reader.faults or [f"{path}: is empty; tachograph supervise --show-policy prints one"])
    return policy


class _Rung(NamedTuple):
    """An action of a ladder, its budget, and whether a person is asked before it."""

    action: str
    budget: Budget | None
    asked: bool


class _Reader:
    """Reads the nodes of one file, and collects what is wrong with them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.faults: list[str] = []

    def policy(self, root: yaml.Node) -> Policy | None:
        parts = self._mapping(root, "the policy", ("version", "restarts", "excuses", "time_left", "triggers"))
        self._version(parts.get("version"), root)
        budget = self._budget(parts["restarts"], "restarts") if "restarts" in parts else None
        if "restarts" not in parts:
            self._fault(root, "restarts is missing: the budget of all restarts together, {per_hour: 3, per_run: 10}")
        phases = self._mapping(parts["excuses"], "excuses", PAUSES) if "excuses" in parts else {}
        excuses = {phase: self._seconds(node, f"excuses.{phase}") for phase, node in phases.items()}
        triggers = self._mapping(parts["triggers"], "triggers", TRIGGERS) if "triggers" in parts else {}
        if not triggers and not self.faults:
            self._fault(root, "triggers is missing or empty: nothing would ever be done")
        rules = {name: rule for name, node in triggers.items() if (rule := self._rule(node, f"triggers.{name}"))}
        time_left = self._seconds(parts["time_left"], "time_left") if "time_left" in parts else 0.0
        return None if budget is None else Policy(budget, excuses, rules, time_left)

    def _version(self, node: yaml.Node | None, root: yaml.Node) -> None:
        if node is None:
            self._fault(root, "version is missing: write version: 1")
        elif node.value != "1":
            self._fault(node, f"version: is {_text(node)}, and this release reads version 1")

    def _rule(self, node: yaml.Node, name: str) -> Rule | None:
        parts = self._mapping(node, name, ("for", "cool_down", "ladder"))
        for missing in [part for part in ("for", "cool_down", "ladder") if part not in parts]:
            self._fault(node, f"{name}.{missing} is missing")
        wait, cool_down = (
            self._seconds(parts[part], f"{name}.{part}") if part in parts else 0.0 for part in ("for", "cool_down")
        )
        rungs = list(self._rungs(parts["ladder"], f"{name}.ladder")) if "ladder" in parts else []
        if not rungs:
            return None
        if rungs[-1][0] not in ENDS:
            self._fault(
                parts["ladder"], f"{name}.ladder: has no end: its last action must be stop or leave, not {rungs[-1][0]}"
            )
        for place, (action, *_) in enumerate(rungs):
            if action in ENDS and place < len(rungs) - 1:
                self._fault(parts["ladder"], f"{name}.ladder: nothing after {action} is ever reached")
                break
            if action in FIRST and any(before not in FIRST for before, *_ in rungs[:place]):
                self._fault(parts["ladder"], f"{name}.ladder: {action} is done each time: put it first")
        names = [one.action for one in rungs]
        for twice in sorted({action for action in names if names.count(action) > 1}):
            self._fault(parts["ladder"], f"{name}.ladder: {twice} is there twice: its budget says how often")
        restarts = {one.action: one.budget for one in rungs if one.budget is not None}
        asked = frozenset(one.action for one in rungs if one.asked)
        return Rule(wait, cool_down, tuple(action for action in names if action in FIRST), restarts, names[-1], asked)

    def _rungs(self, node: yaml.Node, name: str) -> Iterator[_Rung]:
        import yaml

        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._fault(node, f"{name}: expected a list of actions: {', '.join(ACTIONS)}")
            return
        for each in node.value:
            budget, asked = None, False
            action = _text(each)
            if isinstance(each, yaml.MappingNode) and len(each.value) == 1:
                key, value = each.value[0]
                action = _text(key)
                asked = self._asked(value, f"{name}: {action}")
                if action in RESTARTS:
                    budget = self._budget(value, f"{name}: {action}", "ask") or Budget(0, 0)
                elif action in ACTIONS and not (action == STOP and asked and len(value.value) == 1):
                    takes = "nothing but {ask: true}" if action == STOP else "neither a budget nor `ask`"
                    self._fault(each, f"{name}: {action} takes {takes}")
            elif action in RESTARTS:
                self._fault(each, f"{name}: {action} is unbounded: write {action}: {{per_hour: 2, per_run: 4}}")
                budget = Budget(0, 0)
            if action in ACTIONS:
                yield _Rung(action, budget, asked)
            else:
                self._fault(each, f"{name}: {action!r} is not an action: {suggestion(action, ACTIONS)}")

    def _asked(self, node: yaml.Node, name: str) -> bool:
        """Return whether a person is asked before an action: `ask: true` beside its budget."""
        pairs = node.value if isinstance(node.value, list) else []
        given = [pair[1] for pair in pairs if isinstance(pair, tuple) and _text(pair[0]) == "ask"]
        for value in given:
            if _text(value) not in ("true", "false"):
                self._fault(value, f"{name}.ask: must be true or false, not {_text(value)!r:.40}")
        return any(_text(value) == "true" for value in given)

    def _budget(self, node: yaml.Node, name: str, *also: str) -> Budget | None:
        parts = self._mapping(node, name, ("per_hour", "per_run", *also))
        found = {}
        for part, most in (("per_hour", MOST_PER_HOUR), ("per_run", MOST_PER_RUN)):
            if part not in parts:
                self._fault(node, f"{name}: {part} is missing, so restarts are unbounded")
                continue
            text = _text(parts[part])
            if not text.isascii() or not text.isdigit() or len(text) > LONGEST_NUMBER or not 0 < int(text) <= most:
                self._fault(parts[part], f"{name}.{part}: must be a whole number from 1 to {most}, not {text!r:.40}")
                continue
            found[part] = int(text)
        return Budget(**found) if len(found) == 2 else None

    def _seconds(self, node: yaml.Node, name: str) -> float:
        text = _text(node)
        try:
            seconds = duration.parse("0" if text == "0s" else text)
        except ValueError as error:
            self._fault(node, f"{name}: {error}")
            return 0.0
        if seconds > LONGEST:
            self._fault(node, f"{name}: {text} is longer than a day")
        return seconds

    def _mapping(self, node: yaml.Node, name: str, known: Sequence[str]) -> dict[str, yaml.Node]:
        import yaml

        if not isinstance(node, yaml.MappingNode):
            self._fault(node, f"{name}: expected a mapping with {', '.join(known)}")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            word = _text(key)
            if word not in known:
                self._fault(key, f"{name}: {word!r} is unknown: {suggestion(word, known)}")
            elif word in found:
                self._fault(key, f"{name}: {word} is given twice")
            else:
                found[word] = value
        return found

    def _fault(self, node: yaml.Node, text: str) -> None:
        self.faults.append(f"{self._path}:{node.start_mark.line + 1}: {text}")


def _text(node: yaml.Node) -> str:
    """Return the text of a scalar, and something that names nothing for a list or a mapping."""
    return node.value if isinstance(node.value, str) else "a list or mapping"
