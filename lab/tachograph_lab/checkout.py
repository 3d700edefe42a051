"""Where the repository is: the lab runs the shipped rules and writes only to the repository's ignored folders."""

from __future__ import annotations

import os
from pathlib import Path

TOOLS_ENVIRONMENT = "TACHOGRAPH_TOOLS"

_ROOT = Path(__file__).resolve().parents[2]


class CheckoutError(Exception):
    """The lab was installed without its repository, which it needs; the text says what to do."""


def root() -> Path:
    """Return the repository's root, of which this file is `lab/tachograph_lab/checkout.py`; raises CheckoutError."""
    if not (_ROOT / "lab/tachograph_lab/checkout.py").is_file() or not (_ROOT / "prometheus/rules").is_dir():
        raise CheckoutError(
            "the lab needs the repository (rules, tests, Makefile): clone Tachograph and run `make demo` there"
        )
    return _ROOT


def tools() -> Path:
    """Return the folder into which outside programs are unpacked: `$TACHOGRAPH_TOOLS`, else `.tools` in the root."""
    given = os.environ.get(TOOLS_ENVIRONMENT)
    return Path(given).resolve() if given else root() / ".tools"
