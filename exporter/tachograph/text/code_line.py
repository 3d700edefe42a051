"""Where a thread is, as a person reads it: the line of the user's own code, and the innermost one.

Names of files and functions, no values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

_LIBRARY = r"^<frozen |/(?:site|dist)-packages/|/lib(?:64)?/python\d\.\d+/|/exporter/tachograph/"
"""Where files lie that are Python's, an installed package's, or ours in a checkout; compiled when it is first used."""

_OURS = r"/(?:(?:site|dist)-packages|exporter)/tachograph/"


class CodeLine(NamedTuple):
    """A line of a function in a file."""

    path: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.path)}:{self.number} {self.function}"  # noqa: PTH119 - pathlib costs 3 ms


def is_users(path: str) -> bool:
    """Return whether a file is the user's own: neither Python's nor an installed package's nor ours."""
    return re.search(_LIBRARY, path) is None


def whereabouts(stack: Iterable[CodeLine]) -> str:
    """Return a thread's innermost line of the user's code, and the innermost of all if that is another.

    As `data.py:88 load_shard, in socket.py:706 readinto`, from its lines, the innermost first; "" where there are none.
    What we have put around PyTorch's calls in the user's code is not shown.
    """
    lines = list(stack)
    users = next((line for line in lines if is_users(line.path)), None)
    if users is None:
        return "".join(map(str, lines[:1]))
    innermost = next(line for line in lines if not re.search(_OURS, line.path))
    return ", in ".join(dict.fromkeys((str(users), str(innermost))))
