"""Readings of a network port at one moment, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PortDetails:
    """Readings that take longer: speed in bytes a second, None where unknown; errors by kind."""

    speed: float | None
    errors: Mapping[str, float]


@dataclass(frozen=True)
class PortReading:
    """A port of an RDMA device (InfiniBand, RoCE), or an Ethernet device, whose port is "".

    `board` is empty where it is unknown; `received` are bytes, of Ethernet; `details` are not read each time.
    """

    device: str
    port: str
    up: bool
    board: str = ""
    received: float | None = None
    details: PortDetails | None = None


class PortReader(Protocol):
    """Where readings come from: `SysfsPorts`, or what stands for it."""

    def take(self) -> Sequence[PortReading] | None:
        """Return readings of all ports that have not been taken yet; None if there are none."""
        ...

    def trouble(self) -> str:
        """Return "" if readings come, else one of COLLECTOR_REASONS."""
        ...
