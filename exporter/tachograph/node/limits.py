"""How much one node takes from its ranks, and how long it remembers them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Caps and times of the rank side; beyond a cap the excess is dropped and counted, everything else lives on."""

    ranks: int = 64
    """Ranks known at a time; a node has 8 to 16, and restarts leave dead ones behind for a while."""
    series_per_rank: int = 256
    """Training series of one rank; the client sends about 60, and 200 where a loop asks for all it can of layers."""
    label_values: int = 32
    """Values of one label of one metric of one rank: process groups, layers, invariants."""
    frozen_after: float = 10.0
    """Seconds of silence on an open connection after which a rank counts as frozen."""
    retention: float = 900.0
    """Seconds that a dead or failed rank stays visible."""
    retention_finished: float = 120.0
    """Seconds that a finished rank stays visible."""
