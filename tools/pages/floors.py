"""The map of the packages, from the layers that import-linter keeps: sections of docs/design.md and CONTRIBUTING.md."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from importlinter import api

from tools.pages.section import ROOT, with_sections

Floors = Sequence[Sequence[str]]
"""The floors of one package, the highest first; each has the names of the modules on it."""


def design_page() -> str:
    """Return docs/design.md with a table of the floors of each package, described by the modules' own docstrings."""
    return with_sections("docs/design.md", {"floors": "\n" + "\n".join(_table(*package) for package in _layers())})


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


def _table(package: str, floors: Floors) -> str:
    title = f"`{_path(package).relative_to(ROOT)}/`" if package else "The top-level packages"
    rows = [f"{title}:\n", "| floor | module | |", "|---|---|---|"]
    for height, floor in zip(range(len(floors), 0, -1), floors, strict=True):
        rows += (f"| {height} | `{name}` | {_summary(f'{package}.{name}'.lstrip('.'))} |" for name in floor)
    return "\n".join(rows) + "\n"


def _summary(module: str) -> str:
    """Return the first line of a module's docstring."""
    path = _path(module)
    source = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].replace("|", r"\|")


def _path(module: str) -> Path:
    """Return the folder of a package, or the file of a module."""
    inside = module.replace(".", "/")
    candidates = [ROOT / base / f"{inside}{end}" for base in ("exporter", "lab", ".") for end in ("", ".py")]
    return next(candidate for candidate in candidates if candidate.exists())
