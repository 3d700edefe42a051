"""How our own modules are started as processes: none takes a module from the working directory.

`python -m` and `python -c` put the working directory first on the path. Where others may write to it, as to /tmp, a
`json.py` of theirs would run in our processes, whoever starts them, and `-P` is not known to Python 3.10.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

_START = (
    "import sys; sys.path[:1] = [sys.prefix + '/bin'] if sys.path[:1] == [''] else sys.path[:1]; "
    "sys.exit(__import__(sys.argv.pop(1), fromlist=['main']).main())"
)
"""The first place is what it is for the command `tachograph`: `tachograph run` gives it to the script's own folder."""


def own_process(module: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the command that calls `main` of one of our modules with this interpreter; `flags` are Python's own."""
    return [sys.executable, *flags, "-c", _START, module, *arguments]


def own_workers() -> BaseContext:
    """Return how the workers of a process pool of ours are started; the variable that is set is for all that follow."""
    import multiprocessing  # late: only two commands have pools

    if sys.version_info < (3, 11):
        return multiprocessing.get_context("fork")  # a new interpreter would look into the working directory
    os.environ["PYTHONSAFEPATH"] = "1"
    return multiprocessing.get_context("spawn")
