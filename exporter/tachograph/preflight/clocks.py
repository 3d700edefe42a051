"""Check `clocks`: how far the clocks of the ranks' nodes are apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from tachograph.preflight.finding import FAIL, Conclusion, Facts, Measurement, PreflightFinding
from tachograph.preflight.site import PreflightCheck, PreflightSite
from tachograph.text.humanize import duration

ROUNDS = 3
CHEAP_SECONDS = 0.5


def measure(site: PreflightSite) -> Facts:
    """Return this clock's offset from rank 0's in seconds, and its uncertainty, as NTP finds them.

    Rank 0 answers each other rank a few times; the answer that came back fastest counts.
    """
    if site.rank == 0:
        for rank in range(1, site.world_size):
            for number in range(ROUNDS):
                try:
                    site.exchange.read(
                        f"clock/ask/{rank}/{number}", site.options.limit / 2 if not number else CHEAP_SECONDS
                    )
                except TimeoutError:
                    break
                site.exchange.publish(f"clock/answer/{rank}/{number}", time.time())
        return {"offset": 0.0, "uncertainty": 0.0}
    best = (float("inf"), 0.0)
    for number in range(ROUNDS):
        began, asked = time.monotonic(), time.time()
        site.exchange.publish(f"clock/ask/{site.rank}/{number}", 1)
        theirs = site.exchange.read(f"clock/answer/{site.rank}/{number}", site.options.limit)
        took = time.monotonic() - began
        best = min(best, (took / 2, asked + took / 2 - theirs))
    return {"offset": best[1], "uncertainty": best[0]}


def conclude(facts: Mapping[int, Facts], site: PreflightSite) -> Conclusion:
    """Name the ranks whose clock is further from the median than is tolerated, beyond what cannot be known."""
    middle = statistics.median_low(one["offset"] for one in facts.values())
    off: dict[str, list[int]] = {}
    apart = {rank: one["offset"] - middle for rank, one in facts.items()}
    for rank, one in facts.items():
        if abs(apart[rank]) - one["uncertainty"] > site.options.clock:
            way = "ahead of" if apart[rank] > 0 else "behind"
            off.setdefault(f"{duration(abs(apart[rank]))} {way} the others'", []).append(rank)
    findings = [
        PreflightFinding(
            FAIL,
            f"the clock of {site.who(ranks)} is {what}",
            "chronyc tracking or timedatectl there; logs, checkpoints and certificates go wrong by it",
            tuple(ranks),
        )
        for what, ranks in off.items()
    ]
    furthest = max(map(abs, apart.values()))
    worst = max(one["uncertainty"] for one in facts.values())
    measured = [Measurement("clock_offset_seconds", value, rank) for rank, value in apart.items()]
    return Conclusion(f"at most {duration(furthest)} apart, known to {duration(worst)}", findings, measured)


CHECK = PreflightCheck("clocks", "clocks of all ranks", measure, conclude, needs_ranks=True)
