"""Manual pages, made of the help texts: `man tachograph`, `man tachograph-top`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tools.debian.help_texts import Help, Section

FOLDER = "usr/share/man/man1"
OVERVIEW = "tachograph"
SUMMARY = "record distributed GPU training, and say what is wrong with it"


def pages(found: Sequence[Help], version: str, seconds: float) -> dict[str, bytes]:
    """Return the pages by path, not packed yet: of the program and of each command."""
    head = f'"{time.strftime("%Y-%m-%d", time.gmtime(seconds))}" "tachograph {version}"'
    made = {one.name.replace(" ", "-"): _page(one, head) for one in found}
    texts = {OVERVIEW: _overview(found, head)} | {f"{OVERVIEW}-{name}": text for name, text in made.items()}
    return {f"{FOLDER}/{name}.1.gz": text.encode() for name, text in texts.items()}


def _page(one: Help, head: str) -> str:
    name = f"{OVERVIEW}-{one.name.replace(' ', '-')}"
    lines = [f'.TH "{name.upper()}" 1 {head}', ".SH NAME", rf"{escaped(name)} \- {escaped(one.summary)}"]
    lines += [".SH SYNOPSIS", "\n.br\n".join(map(escaped, one.usage))]
    if any(not section.title for section in one.sections):
        lines.append(".SH DESCRIPTION")
    described = [line for section in one.sections if not section.title for line in _described(section)]
    listed = [line for section in one.sections if section.title for line in _described(section)]
    return "\n".join([*lines, *described, *listed, ".SH SEE ALSO", _reference(OVERVIEW)]) + "\n"


def _described(section: Section) -> list[str]:
    if not section.title:
        return [".PP", *(escaped(text) for _, text in section.entries)]
    lines = [f'.SH "{escaped(section.title.upper())}"']
    for entry, text in section.entries:
        lines += [".TP", rf"\fB{escaped(entry)}\fR", escaped(text)] if text else [".PP", escaped(entry)]
    return lines


def _overview(found: Sequence[Help], head: str) -> str:
    lines = [f'.TH "{OVERVIEW.upper()}" 1 {head}', ".SH NAME", rf"{OVERVIEW} \- {SUMMARY}"]
    lines += [".SH SYNOPSIS", escaped("tachograph COMMAND [options]"), ".SH COMMANDS"]
    for one in found:
        lines += [".TP", _reference(f"{OVERVIEW}-{one.name.replace(' ', '-')}"), escaped(one.summary)]
    lines += [".SH FILES", ".TP", "/etc/default/tachograph-exporter", "flags of the service"]
    lines += [".TP", "/usr/share/doc/tachograph/exporter.yml", "every setting of the exporter, with its default"]
    lines += [".TP", "/usr/lib/tachograph/slurm/", "Prolog, Epilog and TaskProlog for Slurm"]
    return "\n".join(lines) + "\n"


def _reference(name: str) -> str:
    return rf"\fB{escaped(name)}\fR(1)"


def escaped(text: str) -> str:
    """Return a text of which troff prints every character as it is."""
    made = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace('"', r"\(dq")
    return rf"\&{made}" if made.startswith(".") else made
