"""How long a full bar is: the limits of alerts, from the table that the rules take them from, or a fixed range."""

from __future__ import annotations

from tachograph.findings.limits import applied

LATE = applied({}, {})["straggler_ratio"].value
"""Lag of a rank as a share of a step: StragglerRank pages there by default."""
NET_ERRORS = 1000
"""Errors of a node's network in an hour: NicErrorsRising fires above."""
WHOLE = 1.0
"""All of a step, or of a run's GPUs."""
TWICE = 2.0
"""Of the median."""
EVER_AGAIN = 10
"""Incidents in a month that one node was to blame for."""
EACH_SECOND = 1
"""Errors: 3,600 times in an hour is beyond what a port may count before it is a ticket."""
