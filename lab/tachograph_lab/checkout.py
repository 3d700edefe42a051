"""The repository, whose rules the lab runs and to whose ignored folders alone it writes."""

from __future__ import annotations

import os
from pathlib import Path

TOOLS_ENVIRONMENT = "TACHOGRAPH_TOOLS"

_ROOT = Path(__file__).resolve().parents[2]


class CheckoutError(Exception):
    """The lab was installed without its repository; the text says what to do."""


def root() -> Path:
    """Return the repository's root, of which this file is `lab/tachograph_lab/checkout.py`; raises CheckoutError."""
    if not (_ROOT / "lab/tachograph_lab/checkout.py").is_file() or not (_ROOT / "prometheus/rules").is_dir():
        raise CheckoutError("the lab needs Tachograph's repository: clone it and run `make demo` there")
    return _ROOT


def tools() -> Path:
    """Return the folder for external programs: `$TACHOGRAPH_TOOLS`, else `.tools` in the repository."""
    given = os.environ.get(TOOLS_ENVIRONMENT)
    return Path(given).resolve() if given else root() / ".tools"
