"""`tachograph auto`: the folder whose presence on PYTHONPATH records every training, and copies of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import copy, copytree, ignore_patterns, rmtree

from tachograph.command_line import CommandParser
from tachograph.text.wrapping import fitted

PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = PACKAGE / "auto/folder"

COPIED = ("attach", "auto", "blackbox", "catalog", "client", "files", "findings", "integrations", "processes", "text")
"""The packages that recording a training may import, besides the modules at the top."""


def main(arguments: Sequence[str]) -> int:
    """Print the folder, or copy it; return the exit status."""
    parser = CommandParser(
        prog="tachograph auto",
        description="Record every training of an environment without an edit: put this folder on PYTHONPATH.",
        epilog="export PYTHONPATH=$(tachograph auto --path)${PYTHONPATH:+:$PYTHONPATH}",
        statuses={0: "done", 1: "the copy could not be written", 2: "wrong arguments"},
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--path", action="store_true", help="print the folder of this installation")
    what.add_argument(
        "--copy", metavar="FOLDER", type=Path, help="write a copy that needs no installation, in place of an older one"
    )
    given = parser.parse_args(arguments)
    if given.path:
        print(FOLDER)
        return 0
    try:
        write_copy(given.copy)
    except OSError as error:
        print(fitted(f"tachograph auto: the copy could not be written: {error}"), file=sys.stderr)
        return 1
    return 0


def write_copy(folder: Path, source: Path = PACKAGE) -> None:
    """Write the folder with all that it needs, of the package in `source`; raise OSError.

    What starts meanwhile is recorded, or runs as without.
    """
    package = folder / "site-packages/tachograph"  # cannot be imported from the folder: that is no name of a module
    folder.mkdir(parents=True, exist_ok=True)
    rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for file in source.glob("*.py"):
        copy(file, package)
    for name in COPIED:
        copytree(source / name, package / name, ignore=ignore_patterns("__pycache__", "command.py"))
    copy(source / "auto/folder/sitecustomize.py", folder)
