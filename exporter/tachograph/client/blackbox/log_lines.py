"""The last lines that this process logged through `tachograph.export.logs`."""

from __future__ import annotations

from collections import deque

KEPT = 50

kept: deque[str] = deque(maxlen=KEPT)
