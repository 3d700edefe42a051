"""Every step of every ladder of the default policy, each as a run that leads a supervisor to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tachograph.supervise import policy
from tachograph.supervise.decision import AT_ONCE
from tachograph.supervise.policy import EXCLUDE_NODE, LEAVE, RESTART, STOP
from tachograph.supervise.run_seen import AlertSeen, RankSeen, RunSeen
from tachograph.supervise.triggers import (
    DEAD,
    EXITED,
    FAILED,
    FROZEN,
    GPU_FAULT,
    HUNG,
    NOT_FINITE,
    OF_ALERTS,
    RESTART_LOOP,
    SILENT_CORRUPTION,
    SLOW,
    SPIKE,
)  # fmt: skip
from tests.supervise.test_alert_triggers import seen_alert
from tests.supervise.world import dead, hung, rank, run

FAULT_SECONDS = 20.0
"""After the beginning of an attempt, when its fault shows; an alert is not of an attempt before a minute has passed."""
ALERT_SECONDS = 70.0
SAVED = (5, 40)


def _on_nodes(seen: RunSeen, **facts: Any) -> RunSeen:
    """Return a run of a rank on node a and one on b."""
    ranks = [replace(one, node="ab"[one.rank]) for one in seen.ranks]
    return replace(seen, ranks=tuple(ranks), **facts)


def _second(**facts: Any) -> list[RankSeen]:
    """Return two ranks, with these facts of the second."""
    return [rank(0, step=50), rank(1, step=50, **facts)]


FAULTS: Mapping[str, Callable[[int], RunSeen]] = {
    GPU_FAULT: lambda _: run(*_second(has_gpu_trouble=True), gpu_trouble=("GPU 0 of b fell off the bus",), saved=SAVED),
    DEAD: lambda step: dead(50 + step, saved=SAVED),
    NOT_FINITE: lambda _: run(*_second(is_lost=True, nonfinite_step=47), saved=SAVED),
    FAILED: lambda step: run(
        *_second(state="failed", end_reason="exception", ended_seconds=1.0, message=f"line {step}"), saved=SAVED
    ),
    FROZEN: lambda step: run(rank(0, step=50 + step), rank(1, step=50 + step, state="frozen"), saved=SAVED),
    HUNG: lambda step: hung(50 + step, saved=SAVED),
    SPIKE: lambda _: run(rank(0, step=85), rank(1, step=85), spiked_step=67, saved=SAVED),
}
"""Trigger -> the run once it holds, at another step in each attempt."""


@dataclass(frozen=True)
class Rung:
    """One step of the ladder of a trigger; `asked` says that a person must confirm it, and does.

    A job without a spare is queued again if a node is left out.
    """

    trigger: str
    action: str
    asked: bool = False
    has_spare: bool = True

    def __str__(self) -> str:
        asked, spare = " asked" if self.asked else "", "" if self.has_spare else " queued"
        return f"{self.trigger} {self.action}{asked}{spare}"

    @property
    def failures(self) -> int:
        """How many attempts fail: a node is left out for most triggers only if it failed before."""
        return 2 if self.action == EXCLUDE_NODE and self.trigger not in AT_ONCE else 1

    @property
    def ends(self) -> Sequence[tuple[int | None, float]]:
        """How each attempt ends by itself, and when."""
        if self.trigger == EXITED:
            return [(1, FAULT_SECONDS), (0, 30.0)]
        lasts = ALERT_SECONDS + 60.0 if self.trigger in OF_ALERTS else 60.0
        return [(0, lasts) if self.action == LEAVE else (None, 0.0)] * self.failures + [(0, 30.0)]

    def look(self, attempt: int, seconds: float) -> RunSeen:
        """Return the run in an attempt, after so many seconds of it."""
        step = 50 if self.trigger == RESTART_LOOP else 10 * attempt + 40 + int(seconds / 10)
        healthy = run(rank(0, step=step), rank(1, step=step), saved=SAVED)
        fails = attempt < self.failures and self.trigger in FAULTS and seconds >= FAULT_SECONDS
        return _on_nodes(FAULTS[self.trigger](attempt) if fails else healthy)

    def alerts(self, attempt: int, seconds: float, began: float) -> tuple[AlertSeen, ...]:
        """Return what Alertmanager has in an attempt that began at this second of the world."""
        if self.trigger not in OF_ALERTS or attempt or seconds < ALERT_SECONDS:
            return ()
        blamed: dict[str, Any] = {"ranks": [1], "node": "b"} if self.trigger in (SLOW, SILENT_CORRUPTION) else {}
        return (seen_alert(self.trigger, began + ALERT_SECONDS, **blamed),)

    def write_policy(self, path: Path) -> Path:
        """Write a policy whose ladder for this trigger begins at this step."""
        asks = ", ask: true" if self.asked else ""
        then = {STOP: "stop: {ask: true}" if self.asked else "stop", LEAVE: "leave"}
        steps = [f"{self.action}: {{per_hour: 4, per_run: 4{asks}}}", "stop"]
        if self.failures > 1:
            steps.insert(1, f"{RESTART}: {{per_hour: 4, per_run: 4}}")
        ladder = ", ".join(["notify", "keep_evidence", *([then[self.action]] if self.action in then else steps)])
        path.write_text(
            "version: 1\nrestarts: {per_hour: 9, per_run: 9}\ntriggers:\n"
            f"  {self.trigger}: {{for: 0s, cool_down: 0s, ladder: [{ladder}]}}\n"
        )
        return path


def rungs() -> list[Rung]:
    """Return each step of the default policy, where somebody is asked by default, with that; one without a spare."""
    return [
        *(
            Rung(trigger, action, action in rule.asked)
            for trigger, rule in policy.read(policy.DEFAULT).rules.items()
            for action in (*rule.restarts, rule.end)
        ),
        Rung(DEAD, EXCLUDE_NODE, has_spare=False),
    ]
