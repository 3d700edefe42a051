"""How much one node takes from its ranks, and how long it remembers them."""

from __future__ import annotations

from dataclasses import dataclass

USERS = 4
"""How many users that take all they may have room on a node at the same time."""


@dataclass(frozen=True)
class Limits:
    """Caps and times of the rank side; beyond a cap the excess is dropped and counted, everything else lives on."""

    ranks: int = 64
    """Ranks of one user known at a time; a node has 8 to 16, and restarts leave dead ones behind for a while."""
    series: int = 4000
    """Series of ranks on the page, of all users together; what is over it is withheld, from whoever has most.
    Prometheus refuses a page of more than its `sample_limit` samples as a whole."""
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

    @property
    def node_ranks(self) -> int:
        """Ranks of all users together."""
        return USERS * self.ranks

    @property
    def connections(self) -> int:
        """Connections of one user: a rank has one, and for a moment two while it reconnects."""
        return 2 * self.ranks

    @property
    def node_connections(self) -> int:
        """Connections of all users together."""
        return USERS * self.connections
