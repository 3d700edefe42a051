"""A YAML file of settings, flattened to dotted names, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.files.yaml_file import YamlFileError, composed
from tachograph.text.humanize import suggestion

if TYPE_CHECKING:
    import yaml

_DEPTH = 3


class ConfigError(Exception):
    """The configuration is invalid; `faults` has one line for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(" ".join(fault.split()) for fault in faults)
        super().__init__("; ".join(self.faults))


@dataclass(frozen=True)
class Entry:
    """The text of a setting, and where it was given."""

    text: str
    where: str


def read_file(path: Path, names: Sequence[str]) -> tuple[dict[str, Entry], list[str]]:
    """Return the settings of a YAML file that are among `names`, and a line for each fault of its form."""
    import yaml  # only here: an exporter that is configured by flags does not pay for it

    try:
        root = composed(path)
    except OSError as error:
        return {}, [f"{path}: cannot be read: {error.strerror or error}"]
    except YamlFileError as error:
        return {}, [str(error)]
    if root is None:
        return {}, []
    found: dict[str, Entry] = {}
    faults: list[str] = []
    for name, node in _leaves(root, ""):
        where = f"{path}:{node.start_mark.line + 1}: {name}" if name else f"{path}:{node.start_mark.line + 1}"
        if not isinstance(node, yaml.ScalarNode) or name not in names:
            faults.append(f"{where}: {_unexpected(name, names)}")
        elif name in found:
            faults.append(f"{where}: given twice")
        else:
            found[name] = Entry(node.value, where)
    return found, faults


def _leaves(node: yaml.Node, prefix: str) -> Iterator[tuple[str, yaml.Node]]:
    import yaml

    # No name is deeper than _DEPTH; a deeper mapping is an alias to itself, or a fault already.
    if not isinstance(node, yaml.MappingNode) or not node.value or prefix.count(".") >= _DEPTH:
        yield prefix, node
        return
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        yield from _leaves(value, f"{prefix}.{name}" if prefix else name)


def _unexpected(name: str, names: Sequence[str]) -> str:
    if name in names:
        return "expected one value, not a list"
    if not name:
        return "expected settings such as gpu: {interval: 1s}"
    if inner := [each.removeprefix(f"{name}.") for each in names if each.startswith(f"{name}.")]:
        return f"expected settings under it: {', '.join(inner)}"
    return f"no such setting: {suggestion(name, names)}"
