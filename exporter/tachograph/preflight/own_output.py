"""Standard output for this command alone: what the user's code, NCCL and other libraries print there goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO


@contextmanager
def own_output() -> Iterator[TextIO]:
    """Yield a file that writes to standard output, while everything else that is written there goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    own = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
    os.dup2(2, 1)
    try:
        yield own
    finally:
        sys.stdout.flush()
        with suppress(OSError):  # said already by what was written before
            own.close()
        os.dup2(kept, 1)
        os.close(kept)
