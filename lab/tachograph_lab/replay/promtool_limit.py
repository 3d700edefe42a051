"""A copy of promtool with a higher limit of samples per query.

`promtool test rules` stops a query at 10,000 samples and has no flag for that (Prometheus pull request 17270 asks for
one): a few hundred ranks exceed it. The limit is in the program once, right before the query timeout, both as 64-bit
little-endian numbers; the copy differs only in that number.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from tachograph_lab import binaries
from tachograph_lab.checkout import tools

SHIPPED_SAMPLES = 10_000
RAISED_SAMPLES = 500_000_000
TIMEOUT_NANOSECONDS = 100_000_000_000

_SHIPPED = struct.pack("<qq", SHIPPED_SAMPLES, TIMEOUT_NANOSECONDS)
_RAISED = struct.pack("<qq", RAISED_SAMPLES, TIMEOUT_NANOSECONDS)


class PromtoolLimitError(binaries.BinariesUnavailable):
    """The limit of a promtool cannot be raised; the message says why."""


def raised(suite: str = binaries.SYSTEM) -> Path:
    """Return the copy of a suite's promtool, made on the first call and again when the original is newer.

    Raises BinariesUnavailable.
    """
    promtool = binaries.find(suite)["promtool"]
    beside = promtool.parent if promtool.is_relative_to(tools()) else tools() / "system"
    copy = beside / "promtool-unlimited"
    if not (copy.exists() and copy.stat().st_mtime >= promtool.stat().st_mtime):
        content = with_raised_limit(promtool.read_bytes(), str(promtool))
        beside.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: two replays may start at once.
        with tempfile.NamedTemporaryFile(dir=beside, delete=False) as file:
            file.write(content)
        partial = Path(file.name)
        partial.chmod(0o755)
        partial.replace(copy)
    return copy


def with_raised_limit(content: bytes, name: str = "promtool") -> bytes:
    """Return a program with its limit raised; raise PromtoolLimitError unless the limit is found exactly once."""
    if (found := content.count(_SHIPPED)) != 1:
        raise PromtoolLimitError(
            f"{name}: its limit of {SHIPPED_SAMPLES:,} samples was found {found} times, not once; "
            "a virtual replay needs the promtool of Prometheus 2.42 to 3.5"
        )
    return content.replace(_SHIPPED, _RAISED)
