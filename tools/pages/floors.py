"""The map of the packages, from the layers that import-linter keeps: a section of CONTRIBUTING.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from importlinter import api

from tools.pages.section import ROOT, with_sections

Floors = Sequence[Sequence[str]]
"""The floors of one package, the highest first; each has the names of the modules on it."""


def contributing_page() -> str:
    """Return CONTRIBUTING.md with one paragraph per package: its floors, the highest first."""
    lines = (
        textwrap.fill(
            f"{package or 'packages'}: " + " → ".join(" | ".join(floor) for floor in floors),
            width=110,
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
        for package, floors in _layers()
    )
    return with_sections("CONTRIBUTING.md", {"floors": "\n```text\n" + "\n".join(lines) + "\n```\n"})


def _layers() -> Iterator[tuple[str, Floors]]:
    """Yield each package that has a contract of layers; "" stands for the top-level packages themselves."""
    for contract in api.read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]:
        if contract["type"] == "layers":
            floors = [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]
            for container in contract.get("containers", ("",)):
                yield container, floors
