"""The shipped rules as a replay needs them: their files, groups, alerts, and the metrics they read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tachograph.files.shipped import read_yaml
from tachograph_lab.checkout import root

_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@dataclass(frozen=True)
class ShippedRules:
    """The rule files of a folder."""

    files: tuple[Path, ...]

    @cached_property
    def _groups(self) -> list[Mapping[str, Any]]:
        return [group for path in self.files for group in read_yaml(path).get("groups") or ()]

    def _rules(self) -> Iterator[Mapping[str, Any]]:
        for group in self._groups:
            yield from group["rules"]

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The groups' names in the order of the files."""
        return tuple(group["name"] for group in self._groups)

    @cached_property
    def alerts(self) -> tuple[str, ...]:
        """The names of all alerts except the watchdog, of severity none, which always fires."""
        names = (
            rule["alert"]
            for rule in self._rules()
            if rule.get("labels", {}).get("severity") != "none"
            if "alert" in rule
        )
        return tuple(dict.fromkeys(names))

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of an expression or template, among them the names of all metrics that are read."""
        texts = (text for rule in self._rules() for text in _texts(rule))
        return frozenset(word for text in texts for word in _WORD.findall(text))


def shipped(folder: Path | None = None) -> ShippedRules:
    """Return the rules of a `prometheus/` folder, the project's own by default."""
    folder = folder or root() / "prometheus"
    configuration = read_yaml(folder / "prometheus.yml")
    files = [path for pattern in configuration["rule_files"] for path in sorted(folder.glob(pattern))]
    return ShippedRules(tuple(files))


def _texts(rule: Mapping[str, Any]) -> Iterator[str]:
    yield str(rule["expr"])
    for key in ("labels", "annotations"):
        yield from map(str, (rule.get(key) or {}).values())
