"""Limits on what one node accepts from its ranks, and for how long it remembers them."""

from __future__ import annotations

from dataclasses import dataclass

USERS = 4
"""Users at their own limits that fit on a node at the same time."""


@dataclass(frozen=True)
class Limits:
    """Limits and times for ranks; what exceeds a limit is dropped and counted, everything else is kept."""

    ranks: int = 64
    """Ranks of one user at a time; a node has 8 to 16, and restarts leave dead ones behind for a while."""
    series: int = 4000
    """Series of ranks on the page, of all users together; what exceeds it is withheld from the users with most.
    Prometheus refuses a page of more than its `sample_limit` samples as a whole."""
    series_per_rank: int = 768
    """Training series of one rank; the client sends about 60, and one rank of a run 600 with all layer statistics."""
    label_values: int = 32
    """Values of one label of one metric of one rank: process groups, invariants."""
    frozen_after: float = 10.0
    """Seconds of silence on an open connection after which a rank counts as frozen."""
    retention: float = 900.0
    """Seconds that a dead or failed rank stays visible."""
    retention_finished: float = 120.0
    """Seconds that a finished rank stays visible."""

    @property
    def layers(self) -> int:
        """Values of the label `layer`, of which one rank of a run has more: 128, as many as the client chooses."""
        return 4 * self.label_values

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
