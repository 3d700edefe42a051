"""Events in the kernel's log, Xids aside: counted by kind, and the newest shown as they were written.

    tachograph_node_kernel_events_total{kind="nfs"} 3
    tachograph_node_kernel_message_age_seconds{kind="nfs",text="nfs: server fs01 not responding, still trying"} 2.5

What a text says may have been chosen by a process, such as its own name. So texts are bounded in number, in length, in
how fast they change, and in their characters: none has a meaning in a chat or in HTML.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tachograph.catalog.node import KERNEL_EVENT_KINDS, NODE_KERNEL_EVENTS, NODE_KERNEL_MESSAGE
from tachograph.node.samples import Row
from tachograph.node.xid.kernel_signatures import kind_of
from tachograph.text.plain import plain

SHOWN_SECONDS = 120.0
"""How long a message is shown: Prometheus has it from then on."""

MOST_MESSAGES, MOST_OF_A_KIND = 8, 2

REPLACE_SECONDS = 30.0
"""How long a message keeps its place from newer ones of its kind: each new text is a new series in Prometheus."""


@dataclass
class _Message:
    """When a message came first and last, on the monotonic clock."""

    since: float
    last: float


class KernelEvents:
    """Counts and keeps events; one thread may take them while another asks for the rows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(KERNEL_EVENT_KINDS, 0)
        self._messages: dict[tuple[str, str], _Message] = {}

    def take(self, text: str, at: float, now: float, *, counts: bool = True) -> None:
        """Take a message of the kernel that came `at` on the monotonic clock, if it is of one of the kinds."""
        kind = kind_of(text)
        if not kind:
            return
        with self._lock:
            self._counts[kind] += counts
            self._forget(now)
            self._keep((kind, plain(text)), at)

    def rows(self, now: float) -> list[Row]:
        """Return the count of every kind, and the age of each message that is shown."""
        with self._lock:
            self._forget(now)
            counts: list[Row] = [((NODE_KERNEL_EVENTS, (kind,)), float(n)) for kind, n in self._counts.items()]
            return counts + [
                ((NODE_KERNEL_MESSAGE, key), max(now - each.last, 0.0)) for key, each in self._messages.items()
            ]

    def _forget(self, now: float) -> None:
        self._messages = {key: each for key, each in self._messages.items() if now - each.last < SHOWN_SECONDS}

    def _keep(self, key: tuple[str, str], at: float) -> None:
        if known := self._messages.get(key):
            known.last = max(known.last, at)
            return
        rivals = [each for each in self._messages if each[0] == key[0]]
        if len(rivals) < MOST_OF_A_KIND:
            rivals = list(self._messages) if len(self._messages) >= MOST_MESSAGES else []
        if rivals:
            oldest = min(rivals, key=lambda each: self._messages[each].last)
            if at - self._messages[oldest].since < REPLACE_SECONDS:
                return
            del self._messages[oldest]
        self._messages[key] = _Message(at, at)
