"""How a dataclass of a scenario says what its fields may hold: by the kind that reads the text in the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Literal, TypeVar

Kind = TypeVar("Kind")
Default = TypeVar("Default")


def size(read: Callable[[str], Kind]) -> Kind:
    """Declare a field that must be given."""
    made: Kind = field(metadata={"read": read})
    return made


def optional(read: Callable[[str], Kind], default: Default, key: str = "") -> Kind | Default:
    """Declare a field that has a default; `key` is its name in the file where Python keeps the word for itself."""
    metadata = {"read": read, "key": key} if key else {"read": read}
    made: Kind | Default = field(default=default, metadata=metadata)
    return made


def place(kind: Literal["rank", "node"]) -> int:
    """Declare a field that names one rank or one node."""
    made: int = field(metadata={"place": kind})
    return made


def places(kind: Literal["ranks", "nodes"]) -> tuple[int, ...]:
    """Declare a field that names several ranks or nodes."""
    made: tuple[int, ...] = field(metadata={"place": kind})
    return made
