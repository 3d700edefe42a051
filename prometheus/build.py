"""Write the rules: `python prometheus/build.py` makes rules/<subject>.yml from src/<subject>.yml.

In a source, `$(name argument; argument)` stands for a text of macros.yml or a value of parameters.yml; nothing else
differs from a rule file. The flags set parameters for rules of your own, which `--output` writes elsewhere.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).parent
SOURCES = sorted((HERE / "src").glob("*.yml"))
HEADER = "# Made by `make rules` from prometheus/src/{}: edit that.\n"
TITLE = re.compile(r" *- (?:alert|record): (\S+)")
VALUE = re.compile(r"""[^\s"'\\{}$]+""")
"""What a parameter may be: it stands in labels, in PromQL and in templates alike."""


class MacroError(Exception):
    """A use of a macro that cannot be replaced; the text says why."""


class SourceError(Exception):
    """Every fault of a rendering, each with its file and line."""


@dataclass(frozen=True)
class Macro:
    """A text with the names that each use of it fills in."""

    names: tuple[str, ...]
    text: str


def expand(text: str, macros: Mapping[str, Macro]) -> str:
    """Return the text with every use of a macro replaced; raise MacroError."""
    return "\n".join(_line(line, macros) for line in text.split("\n"))


def _line(line: str, macros: Mapping[str, Macro]) -> str:
    start = line.find("$(")
    if start < 0:
        return line
    end = _closing(line, start + 2)
    indent = " " * (len(line) - len(line.lstrip(" -")))
    text = _use(line[start + 2 : end], macros).replace("\n", "\n" + indent)
    return line[:start] + text + _line(line[end + 1 :], macros)


def _closing(line: str, start: int) -> int:
    """Return the place of the parenthesis that closes the one before `start`."""
    depth = 1
    for place in range(start, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if not depth:
            return place
    raise MacroError(f"`{line[start - 2 :].strip()}` is not closed on its line")


def _use(use: str, macros: Mapping[str, Macro]) -> str:
    name, _, rest = use.partition(" ")
    given = [expand(one.strip(), macros) for one in rest.split(";")] if rest else []
    macro = macros.get(name)
    if macro is None:
        raise MacroError(f"there is no macro or parameter `{name}`")
    if len(given) != len(macro.names):
        wanted = "; ".join(macro.names) or "no argument"
        raise MacroError(f"`{name}` takes {wanted}, and is given {'; '.join(given) or 'none'}")
    arguments = {one: Macro((), text) for one, text in zip(macro.names, given, strict=True)}
    others = {one: other for one, other in macros.items() if other is not macro}  # a macro that used itself never ended
    return expand(macro.text, others | arguments)


def macros() -> dict[str, Macro]:
    """Return the macros by name."""
    found = {}
    for title, text in yaml.safe_load((HERE / "macros.yml").read_text(encoding="utf-8")).items():
        name, *names = re.split(r"; | ", title)
        found[name] = Macro(tuple(names), text)
    return found


def parameters() -> dict[str, str]:
    """Return the parameters as shipped, by name."""
    found: dict[str, str] = yaml.safe_load((HERE / "parameters.yml").read_text(encoding="utf-8"))
    return found


def rendered(source: Path, values: Mapping[str, str]) -> str:
    """Return the rule file that a source makes with these parameters; raise SourceError."""
    known = macros() | {name: Macro((), value) for name, value in values.items()}
    lines, faults = [], []
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1):
        if title := TITLE.match(line):
            known["rule"] = Macro((), title[1])
        try:
            lines.append(_line(line, known))
        except MacroError as error:
            faults.append(f"{source}:{number}: {error}")
    if faults:
        raise SourceError("\n".join(faults))
    return HEADER.format(source.name) + "\n".join(lines) + "\n"


def _value(text: str) -> str:
    if not VALUE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} has a space, a quote, a brace, a backslash or a dollar sign")
    return text.rstrip("/")


def main(arguments: list[str] | None = None) -> int:
    """Write every rule file; return the exit status."""
    parser = argparse.ArgumentParser(prog="prometheus/build.py", description=(__doc__ or "").split("\n\n")[0])
    for name, value in parameters().items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=value, type=_value, help=f"default: {value}")
    parser.add_argument("--output", type=Path, default=HERE / "rules", metavar="DIR", help="default: prometheus/rules")
    values = vars(parser.parse_args(arguments))
    output: Path = values.pop("output")
    texts, faults = {}, []
    for source in SOURCES:
        try:
            texts[source.name] = rendered(source, values)
        except SourceError as found:
            faults.append(str(found))
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
