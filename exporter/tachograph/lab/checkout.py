"""Where the repository is: the lab runs the shipped rules and writes only to the repository's ignored folders."""

from __future__ import annotations

import os
from pathlib import Path

TOOLS_ENVIRONMENT = "TACHOGRAPH_TOOLS"


class CheckoutError(Exception):
    """Tachograph was installed without its repository, which the lab needs; the text says what to do."""


def root() -> Path:
    """Return the repository's root, the nearest folder above this file that holds a `pyproject.toml`."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "pyproject.toml").is_file():
            return folder
    raise CheckoutError("the lab needs the repository (rules, tests, Makefile): clone it and run `make demo` there")


def tools() -> Path:
    """Return the folder into which outside programs are unpacked: `$TACHOGRAPH_TOOLS`, else `.tools` in the root."""
    given = os.environ.get(TOOLS_ENVIRONMENT)
    return Path(given).resolve() if given else root() / ".tools"
