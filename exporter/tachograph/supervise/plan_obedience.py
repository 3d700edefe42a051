"""Whether a training loop does what the plan of its attempt says, as the numbers of its steps show."""

from __future__ import annotations

from tachograph.supervise.plan import AttemptPlan
from tachograph.supervise.run_seen import RunSeen
from tachograph.text.humanize import count, plural

TOLERANCE = 2
"""Of a first step: loops count from the last step or from the next one, and a frame may be made amid a step."""


class PlanObedience:
    """Compares the first step of each rank's process with the plan, from its number now and how many it has made.

    It does so until all ranks are beyond what they were to leave out; those that a launcher has restarted within the
    attempt have gone on from a later checkpoint, and are not asked.
    """

    def __init__(self, plan: AttemptPlan) -> None:
        self._plan = plan
        self._restarts: dict[int, int] = {}
        self._is_over = plan.step is None

    def broken_by(self, seen: RunSeen) -> str:
        """Return in which way a rank does not follow the plan, empty while none is known not to."""
        begin, skip = self._plan.step or 0, self._plan.skip
        if self._is_over:
            return ""
        self._is_over = True
        for rank in seen.ranks:
            first_look = self._restarts.setdefault(rank.rank, rank.restarts) == rank.restarts
            if not rank.steps or rank.step is None:
                self._is_over = False
            elif first_look:
                left_out = sum(max(min(end, rank.step) - max(start, begin), 0) for start, end in skip)
                first = rank.step - rank.steps
                if left_out and abs(first - begin) <= TOLERANCE < left_out:
                    return f"rank {rank.rank} makes steps that its plan leaves out: it is at step {count(rank.step)}"
                if abs(first - left_out - begin) > TOLERANCE:
                    return (
                        f"rank {rank.rank} began at step {count(first)} and not at step {count(begin)}, as its plan "
                        f"says, or it counts differently: it has made {plural(rank.steps, 'step')}, and is at step "
                        f"{count(rank.step)}"
                    )
                self._is_over &= all(rank.step > end for _, end in skip)
        return ""
