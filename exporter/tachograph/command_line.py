"""How every command reads its arguments: a fault is one line that says what to do, and the help ends with statuses."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from textwrap import fill
from typing import Any, NoReturn

from tachograph.text.humanize import did_you_mean, suggestion
from tachograph.text.printable import printable

JSON_VERSION = 1
"""Of the object that a command prints for --json; adding a key does not change it."""

WIDTH = 79
"""Columns of a help text that has exit statuses, and so is not wrapped to the terminal."""


class CommandParser(argparse.ArgumentParser):
    """A parser of one command's arguments; `statuses` are its exit statuses with their meaning, for the help."""

    def __init__(self, *, statuses: Mapping[int, str] | None = None, **options: Any) -> None:  # noqa: ANN401
        if statuses:
            listed = "\n".join(
                fill(f"  {number}  {meaning}", WIDTH, subsequent_indent=" " * 5) for number, meaning in statuses.items()
            )
            options["description"] = fill(options.get("description", ""), WIDTH)
            options["epilog"] = f"{fill(options.get('epilog', ''), WIDTH)}\n\nexit status:\n{listed}".strip()
            options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(**options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]  # noqa: ANN401
        """Return the arguments; exit with status 2 for a fault, with the nearest option for one that does not exist."""
        given: argparse.Namespace
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(_unknown(unknown[0], set(self._known_options())))
        return given

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line on standard error, and exit with status 2."""
        line = f"{self.prog}: {' '.join(message.split()).removeprefix('argument ')}; see {self.prog} --help"
        self.exit(2, printable(line) + "\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            raise argparse.ArgumentError(action, f"{value!r}: {suggestion(str(value), known)}")

    def _known_options(self) -> Iterator[str]:
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._known_options()


def versioned_json(content: Mapping[str, object]) -> str:
    """Return what --json prints: an object with its version first. docs/schemas/ describes that of each command."""
    return json.dumps({"version": JSON_VERSION, **content}, indent=2, allow_nan=False)


def _unknown(word: str, options: Collection[str]) -> str:
    """Return what is wrong with a word that is no argument."""
    if not word.startswith("-"):
        return f"{word!r} is one argument too many"
    option = word.partition("=")[0]
    hint = did_you_mean(option, sorted(options), alike=0.7)
    return f"unknown option {option}" + f"; {hint}" * bool(hint)
