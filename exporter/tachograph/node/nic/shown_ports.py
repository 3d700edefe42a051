"""The samples shown for network ports."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tachograph.catalog import index as catalog
from tachograph.node.nic.port_conclusions import PortConclusions
from tachograph.node.nic.port_reading import PortReader
from tachograph.node.samples import Sample

EVERY_SECONDS = 4.0
"""And a second more, for what is asked for at one look is there at the next."""


class ShownPorts:
    """Takes the readings of a reader, and shows what is concluded of them."""

    def __init__(self, reader: PortReader, clock: Callable[[], float]) -> None:
        self._reader, self._clock = reader, clock
        self._conclusions = PortConclusions()
        self._looked = -math.inf

    def look(self) -> None:
        """Take readings, if it is time to and there are any."""
        now = self._clock()
        if now - self._looked >= EVERY_SECONDS and (ports := self._reader.take()) is not None:
            self._looked = now
            self._conclusions.look(ports, now)

    def samples(self) -> Iterator[Sample]:
        """Yield what is amiss, and whether ports can be read."""
        yield from self._conclusions.samples(self._clock())
        reason = self._reader.trouble()
        yield Sample(catalog.COLLECTOR_SUCCESS, ("nic",), not reason)
        if reason:
            yield Sample(catalog.COLLECTOR_UNAVAILABLE, ("nic", reason), 1)
