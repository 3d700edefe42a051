"""The texts of `--help` of each command, taken apart for the manual, the completions and the reference."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

from tachograph.__main__ import COMMANDS, main

_WIDE = {"COLUMNS": "10000", "NO_COLOR": "1", "LOGNAME": "$USER"}
"""So that argparse breaks no line and colours none, and no default is who builds."""

_ENTRY = re.compile(r" {2,4}(?! )(\S.*?)(?: {2,}(.*))?$")
_OPTION = re.compile(r"--[a-zA-Z][\w.-]*")


@dataclass(frozen=True)
class Section:
    """A part of a help text: its title, empty for plain paragraphs, and its entries with what is said of each."""

    title: str
    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Help:
    """A command, what it does in a line, how it is used, and the sections of its help."""

    name: str
    summary: str
    usage: Sequence[str]
    sections: Sequence[Section]

    def options(self) -> Mapping[str, tuple[bool, str]]:
        """Return the long options: whether a value follows, and what is said of each."""
        found = {}
        for entry, text in (each for section in self.sections if section.title for each in section.entries):
            if entry.startswith("-"):
                for option in _OPTION.findall(entry):
                    found[option] = (" " in re.sub(r", ", ",", entry), text)
        return found

    def statuses(self) -> Mapping[int, str]:
        """Return the exit statuses with their meaning; none of a command with others below it, which have their own."""
        listed = (section for section in self.sections if re.fullmatch("exit status( of .*)?", section.title))
        return {} if self.commands() else {int(entry): text for one in listed for entry, text in one.entries}

    def commands(self) -> Mapping[str, str]:
        """Return the names of the commands below this one, with what each does."""
        if not any(" COMMAND " in line for line in self.usage):
            return {}
        listed = (section for section in self.sections if section.title.lower() == "positional arguments")
        return {entry: text for section in listed for entry, text in section.entries if entry.islower() and text}


def helps() -> Iterator[Help]:
    """Yield the help of each command, and after it that of each below it."""
    for name, command in COMMANDS.items():
        found = help_of(name, command.summary)
        yield found
        for below, summary in found.commands().items():
            yield help_of(f"{name} {below}", summary)


def help_of(name: str, summary: str = "") -> Help:
    """Return the help of a command, or of one below it, such as `blackbox analyze`."""
    said = io.StringIO()
    with patch.dict(os.environ, _WIDE), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*name.split(), "--help"])
    return parsed(name, summary, said.getvalue())


def parsed(name: str, summary: str, text: str) -> Help:
    """Return a help text taken apart: what begins a line and ends with a colon is the title of a section."""
    usage, _, rest = text.partition("\n\n")
    first, *more = usage.removeprefix("usage: ").splitlines()
    sections = []
    for block in filter(None, rest.split("\n\n")):
        lines = block.strip("\n").splitlines()
        title = lines.pop(0)[:-1] if re.fullmatch(r"[a-z][^.]*:", lines[0]) else ""
        sections.append(Section(title, _entries(lines) if title else [("", " ".join(map(str.strip, lines)))]))
    return Help(name, summary, [first, *(line.strip() for line in more)], sections)


def _entries(lines: Sequence[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for line in lines:
        entry = _ENTRY.match(line)
        if entry and not (entry[1] == "COMMAND" and not entry[2]):
            found.append((entry[1], entry[2] or ""))
        elif found and not entry:
            before, text = found[-1]
            found[-1] = (before, f"{text} {line.strip()}".strip())
    return found
