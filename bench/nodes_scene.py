"""A fleet of bench/nodes.py in trouble: what is done to it, and what people received."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from nodes_fleet import NODES, RANKS, OnHosts
from tachograph_lab.live.watched_fleet import wait
from tachograph_lab.pager import FIRING, PagedAlert, Pager

LOST = NODES[-1]
"""The node that has the trouble; rank 0 is elsewhere."""
STUCK = RANKS - 1
"""The rank that hangs, on LOST."""

CALM_SECONDS = 45.0
"""Between the first sight of all ranks and a fault: rules know the run's usual step by then."""
LASTING = ("RunHung",)
"""Alerts of troubles that nothing mends here."""

AFTERWARDS_SECONDS = 60.0
"""How long one watches for a second page after the first."""


@dataclass(frozen=True)
class Notice:
    """What a person must receive, once."""

    alert: str
    instance: str = ""
    rank: str = ""
    cell: str = ""

    def is_of(self, one: PagedAlert) -> bool:
        """Whether a page says just this."""
        found = (one.alert, *(one.labels.get(name, "") for name in ("instance", "rank", "cell")))
        return one.receiver == "page" and found == (self.alert, self.instance, self.rank, self.cell)


@dataclass
class Scene:
    """A fleet that trains and is watched, and what happened to it."""

    fleet: OnHosts
    pager: Pager
    struck: float = 0.0
    """When the fault began that a page must follow, in Unix seconds."""
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What was seen to be wrong, beside pages."""

    def pause(self, seconds: float) -> None:
        """Go on after so many seconds; raise ProcessError if anything ends that was not ended."""
        wait(self.fleet.children.running, until=time.time() + seconds)

    def strike(self) -> None:
        """Note that the fault begins now."""
        self.struck = time.time()

    def kill(self, *parts: str) -> None:
        """End programs without a chance to save."""
        for part in parts:
            self.fleet.kill(part)

    def restart(self, part: str) -> None:
        """Kill a program and start it again at once, with its data."""
        self.kill(part)
        if part.startswith("exporter-"):
            self.fleet.nodes.start_exporter(part.removeprefix("exporter-"))
        else:
            self.fleet.start_again()

    def lose_node(self) -> None:
        """Take a node away as a loss of power does: no packet leaves it any more."""
        self.strike()
        self.fleet.network.cut(LOST)
        self.kill(*self.fleet.nodes.parts_of(LOST))

    def hang(self) -> None:
        """Have a rank stand still."""
        self.strike()
        self.fleet.nodes.stick(STUCK)

    def await_page(self, notice: Notice, seconds: float) -> None:
        """Wait for a page, and watch for a second one; that it did not come is seen later."""
        if self.pager.wait_for(notice.is_of, seconds):
            self.pause(AFTERWARDS_SECONDS)

    def ended(self) -> list[str]:
        """Return the alerts about runs that people were told are over: no run in trouble recovers here."""
        return sorted({one.alert for one in self.pager.pages() if one.status != FIRING and one.alert in LASTING})

    def received(self) -> list[PagedAlert]:
        """Return all that was sent as firing, the watchdog's aside."""
        return [one for one in self.pager.pages() if one.status == FIRING and one.receiver != "watchdog"]
