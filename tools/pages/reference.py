"""docs/reference.md and deploy/exporter.yml: commands, the Recorder, settings and variables, made from the code."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from tachograph import Recorder
from tachograph.__main__ import COMMANDS
from tachograph.catalog.index import TRAIN_METRICS
from tachograph.node.config import SETTINGS, Setting
from tachograph.servers.server_address import web_socket_path
from tachograph.wire import SYSTEM_SOCKET
from tools.debian.help_texts import Help, helps
from tools.pages.variables import VARIABLES

_PAGE = """\
# Reference

Made by `make docs` from the code: do not edit.

## Commands

`tachograph COMMAND --help` has the options of each.

{commands}

### Exit statuses

| command | | |
|---|---|---|
{statuses}

For every command, 1 also means that a package is not installed, and the text names it; 130 means Ctrl-C, unless that is
the usual end; 141 means that nobody reads the output any more. A command that fails says why in one line on standard
error.

### JSON

With `--json` a command prints one object to standard output, as its schema says:
{schemas}.
An exporter serves {pages}.

Each has a `version`, which is raised if a key is removed or changes its meaning; keys and values may be added without
that. The schemas are those of this release, and closed: to read a newer release's objects too, allow additional
properties.

### Width

On a terminal, texts are as wide as the terminal, for which 80 columns are enough; elsewhere they are wrapped at 100, or
at `$COLUMNS`. Paths, addresses, commands to run, and the log line that names a cause are not broken. Nor are messages
on standard error.

## Recorder

`tachograph.Recorder(…)` takes:

{arguments}

No call raises or waits:

{calls}

`watch` also takes:

{options}

`step.log(…)` inside `with recorder.step() as step:` takes what `metrics` declares, and
{loggable}.

## Exporter

[deploy/exporter.yml](../deploy/exporter.yml) has every setting of `tachograph exporter --config FILE` with its default
and what it does, as in `--help`. A flag has the same name and takes precedence, as in
`--gpu.interval 5s`.

## Environment variables
{variables}
"""

_SAMPLE = """\
## Every setting of `tachograph exporter --config FILE`, with its default. Made by `make docs`: do not edit, but copy it
## (to /etc/tachograph/exporter.yml), and take the "# " from the line of what you change and from its section's.
## A mistake is reported with its line, and the exporter does not start. A reload (SIGHUP) applies a change of what is
## marked live; the rest needs a restart.
"""

_DEFAULTS = {
    "socket": SYSTEM_SOCKET,
    "state-file": SYSTEM_SOCKET.replace(".sock", ".state"),
    "web.socket": web_socket_path(SYSTEM_SOCKET),
}
"""Defaults that depend on the environment, as a service of the system has them."""

_PAGES_OF_JSON: Mapping[str, str] = {"/api/node": "api-node", "/api/blackbox/<run>": "api-blackbox"}
"""The schema of what an exporter serves, by its address."""

_IN_USE = tuple(one for one in SETTINGS if not one.help.startswith("Deprecated"))


def reference_page() -> str:
    """Return the page as Markdown."""
    found = list(helps())
    return _PAGE.format(
        commands="\n".join(f"- `{name}`: {command.summary}" for name, command in COMMANDS.items()),
        statuses="\n".join(_statuses(found)),
        schemas=_wrapped(_schema(one.name) for one in found if "--json" in one.options()),
        pages=" and ".join(f"[`{address}`](schemas/{name}.json)" for address, name in _PAGES_OF_JSON.items()),
        arguments="\n".join(_arguments()),
        calls="\n".join(_calls()),
        options="\n".join(_items(inspect.getdoc(Recorder.watch) or "")),
        loggable=", ".join(f"`{row.key.removesuffix('_total')}`" for row in TRAIN_METRICS.values() if row.loggable),
        variables="\n".join(_variables()),
    )


def _statuses(found: Iterable[Help]) -> Iterator[str]:
    """Yield a row for each exit status of each command; those of `run` are the script's."""
    for one in found:
        name = f"`{one.name}`"
        for number, meaning in one.statuses().items():
            yield f"| {name} | {number} | {meaning} |"
            name = ""
        if not (one.statuses() or one.commands()):
            (said,) = (text for part in one.sections for _, text in part.entries if text.startswith("exit status: "))
            yield f"| {name} | | {said.removeprefix('exit status: ')} |"


def _schema(command: str) -> str:
    return f"[`{command}`](schemas/{command.replace(' ', '-')}.json)"


def _wrapped(words: Iterable[str]) -> str:
    return "\n".join(textwrap.wrap(", ".join(words), 120, break_long_words=False, break_on_hyphens=False))


def _arguments() -> Iterator[str]:
    """Yield the arguments of the constructor as the class describes them; variables have a table of their own."""
    yield from (item for item in _items(inspect.getdoc(Recorder) or "") if not item.startswith("- `$"))


def _items(text: str) -> list[str]:
    """Return the items of the list in a docstring."""
    return re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)


def _calls() -> Iterator[str]:
    """Yield an item for each public method and property: its call and the first sentence of its docstring."""
    for name, member in vars(Recorder).items():
        if not name.startswith("_") and (says := inspect.getdoc(member)):
            summary = says.partition("\n")[0]
            call = name if isinstance(member, property) else f"{name}({', '.join(_parameters(member))})"
            yield f"- `{call}`: {summary}"


def _parameters(call: object) -> Iterator[str]:
    """Yield the parameters a caller may give, as `name` or `name=default`; `…` stands for those that its text lists."""
    listed = "\n- `" in (inspect.getdoc(call) or "")
    parameters = [one for one in inspect.signature(call).parameters.values() if one.name != "self"]  # type: ignore[arg-type]
    for one in parameters:
        if one.kind is one.POSITIONAL_OR_KEYWORD or (one.kind is one.KEYWORD_ONLY and not listed):
            yield one.name if one.default is one.empty else f"{one.name}={one.default!r}"
    if listed:
        yield "…"


def _variables() -> Iterator[str]:
    """Yield the variables by their reader."""
    for reader in dict.fromkeys(one.reader for one in VARIABLES):
        yield f"\nRead by {reader}:\n"
        yield from (f"- `{one.name}`: {one.meaning}" for one in VARIABLES if one.reader == reader)


def sample_file() -> str:
    """Return a configuration file with every setting at its default, each explained, all commented out."""
    lines = [_SAMPLE]
    before: list[str] = []
    for one in _IN_USE:
        *sections, key = one.name.split(".")
        for depth, name in enumerate(sections):
            if before[: depth + 1] != sections[: depth + 1]:
                lines.append(f"# {'  ' * depth}{name}:")
        before = sections
        indent = "  " * len(sections)
        text = one.help + (" Live." if one.live else "")
        lines += textwrap.wrap(text, 120, initial_indent=f"## {indent}", subsequent_indent=f"## {indent}")
        lines.append(f"# {indent}{key}: {_value(one)}")
    return "\n".join(lines) + "\n"


def _value(setting: Setting) -> str:
    """Return a default as YAML: quoted where it would be read as another type."""
    text = _DEFAULTS.get(setting.name, setting.default)
    return text if re.fullmatch(r"[a-z/][\w./-]*|[1-9]\d*[ms]?", text) else f'"{text}"'
