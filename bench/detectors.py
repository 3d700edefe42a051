"""The accuracy of loss detectors: Tachograph's and the rules of three peers, on labelled traces.

Constants were chosen on seeds 0 to 49; reported are seeds 1000 to 1099.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import loss_traces
from loss_traces import Trace
from peer_detectors import KillLossSpike, RerunMachine, SkipStep
from slow_divergence import SlowDivergence
from tachograph.client.signals.grad_norm import GradNormWatch
from tachograph.client.signals.learning_rate import LearningRateWatch
from tachograph.client.signals.loss_spikes import RATE_JUMP_GRACE, RESUME_GRACE, LossWatch, NonfiniteWatch
from tachograph_lab import table
from tachograph_lab.table import save, show

DOCUMENT = Path(__file__).parent.parent / "docs" / "evidence" / "detectors.md"
FENCE = "<!-- written by bench/detectors.py --doc -->"
REPORTED = range(1000, 1100)
HEALTHY_SEEDS = 20
"""Two healthy traces of 100,000 steps for each kind of noise."""


Detector = Callable[[int, float], bool]
"""Takes steps and values in order and returns whether it raises an alarm."""


class Client:
    """The client's own classes, called as a rank's sender thread calls them."""

    def __init__(self) -> None:
        self._step = 0
        self._loss = LossWatch(lambda: self._step)  # a step a second
        self._nonfinite, self._rate = NonfiniteWatch(), LearningRateWatch()

    def __call__(self, step: int, value: float) -> bool:
        """Return whether the loss is not finite or a spike is in progress."""
        self._step = step
        before = self._nonfinite.totals["loss"]
        self._nonfinite.observe(step, {"loss": value})
        self._loss.observe(step, value)
        return self._nonfinite.totals["loss"] > before or self._loss.spike.steps > 0

    @property
    def is_spike(self) -> bool:
        """Return whether a spike is in progress."""
        return self._loss.spike.steps > 0

    def learning_rate(self, step: int, rate: float) -> None:
        """Take the learning rate of a step, before its loss."""
        if self._rate.observe(step, rate):
            self._loss.grace(RATE_JUMP_GRACE)

    def resumed(self) -> None:
        """Note that this process resumed from a checkpoint."""
        self._loss.grace(RESUME_GRACE)


class Tachograph(Client):
    """The client together with the rule with which Prometheus detects a slow divergence."""

    def __init__(self) -> None:
        super().__init__()
        self._slow = SlowDivergence()

    def __call__(self, step: int, value: float) -> bool:
        """Return whether either alarm is active."""
        wrong = super().__call__(step, value)
        return self._slow.observe(step, value, spike=self.is_spike) or wrong

    def learning_rate(self, step: int, rate: float) -> None:
        """Take the learning rate of a step, before its loss."""
        super().learning_rate(step, rate)
        self._slow.learning_rate(rate)

    def resumed(self) -> None:
        """Note that this process resumed from a checkpoint: the rule waits until its window is full again."""
        super().resumed()
        self._slow = SlowDivergence()


class TachographNorm:
    """The client's watch over the gradient norm."""

    def __init__(self) -> None:
        self._step = 0
        self._norm = GradNormWatch(lambda: self._step)

    def __call__(self, step: int, value: float) -> bool:
        """Return whether a spike is in progress."""
        self._step = step
        self._norm.observe(step, value)
        return self._norm.spike.steps > 0


class Rule(NamedTuple):
    """A detector, and whether its program saves its state in the checkpoint, so that a restart changes nothing."""

    make: Callable[[], Detector]
    is_saved: bool = False


RULES: Mapping[str, Rule] = {
    "Tachograph": Rule(Tachograph),
    "its client alone": Rule(Client),
    "KillLossSpike": Rule(KillLossSpike),
    "KillLossSpike, each outlier": Rule(lambda: KillLossSpike(patience=0)),
    "OLMo-core, 6 σ of 128": Rule(SkipStep),
    "Megatron, 10 × first 100": Rule(RerunMachine, is_saved=True),
}
GRADIENT_RULES: Mapping[str, Rule] = {
    "Tachograph": Rule(TachographNorm),
    **{name: RULES[name] for name in ("OLMo-core, 6 σ of 128", "Megatron, 10 × first 100")},
}
"""KillLossSpike looks at the loss alone."""

LEFT_OUT = ("found", "false", "F1", "median delay, steps", "its client alone", "KillLossSpike, each outlier")
"""Columns of the tables that are printed and not in the document."""


@dataclass
class Score:
    """The results of one detector on some traces."""

    events: int = 0
    false_alarms: int = 0
    delays: list[int] = field(default_factory=list)
    coverage: list[float] = field(default_factory=list)
    steps: int = 0

    def add(self, trace: Trace, rule: Rule) -> None:
        """Run a new detector of `rule` over `trace`.

        An alarm is an unbroken run of flagged steps: right if it touches an event, false if it touches neither an
        event nor a neutral span. Several alarms on one event count as one.
        """
        flagged, detector = [], rule.make()
        for i, (step, value) in enumerate(zip(trace.steps, trace.values, strict=True)):
            if i in trace.restarts and not rule.is_saved:
                detector = rule.make()
                if isinstance(detector, Client):
                    detector.resumed()
            if trace.rates and isinstance(detector, Client):
                detector.learning_rate(step, trace.rates[i])
            if detector(step, value):
                flagged.append(i)
        self.steps += len(trace.values)
        self.events += len(trace.events)
        for event in trace.events:
            hits = [i for i in flagged if i in event]
            self.coverage.append(len(hits) / len(event))
            if hits and len(hits) >= trace.least_share * len(event):
                self.delays.append(hits[0] - event.start)
        spans = (*trace.events, *trace.neutral)
        self.false_alarms += sum(not any(i in span for span in spans for i in alarm) for alarm in alarms(flagged))

    def merge(self, other: Score) -> None:
        """Add another score."""
        self.events += other.events
        self.false_alarms += other.false_alarms
        self.delays += other.delays
        self.coverage += other.coverage
        self.steps += other.steps

    @property
    def recall(self) -> float:
        """The share of events that were flagged while they lasted."""
        return len(self.delays) / self.events

    @property
    def precision(self) -> float:
        """The share of alarms that were right; NaN without alarms."""
        count = len(self.delays) + self.false_alarms
        return len(self.delays) / count if count else math.nan

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        right = len(self.delays)
        return 2 * right / (right + self.false_alarms + self.events)


def alarms(flagged: Iterable[int]) -> list[range]:
    """Join positions that follow one another."""
    joined: list[range] = []
    for i in flagged:
        if joined and joined[-1].stop == i:
            joined[-1] = range(joined[-1].start, i + 1)
        else:
            joined.append(range(i, i + 1))
    return joined


def judge(traces: Iterable[Trace], rules: Mapping[str, Rule]) -> dict[str, dict[str, Score]]:
    """Return the score of each detector for each kind of trace."""
    scores: dict[str, dict[str, Score]] = {name: {} for name in rules}
    for trace in traces:
        for name, kinds in scores.items():
            kinds.setdefault(trace.kind, Score()).add(trace, rules[name])
    return scores


def summary(by_kind: Mapping[str, Score], healthy: Score) -> dict[str, Any]:
    """Return the row of one detector."""
    total = Score()
    for score in by_kind.values():
        total.merge(score)
    long = next(score for kind, score in by_kind.items() if "20–200" in kind)
    return {
        "found": f"{len(total.delays)}/{total.events}",
        "false": total.false_alarms,
        "precision": f"{total.precision:.3f}",
        "recall": f"{total.recall:.3f}",
        "F1": f"{total.f1:.3f}",
        "median delay, steps": float(statistics.median(total.delays)) if total.delays else math.nan,
        "share of a long one flagged": statistics.fmean(long.coverage),
        "false per 100k healthy steps": 1e5 * healthy.false_alarms / healthy.steps,
    }


def rows_by_kind(scores: Mapping[str, Mapping[str, Score]]) -> list[dict[str, Any]]:
    """Return a row for each kind: events found, and false alarms if there were any."""
    kinds = next(iter(scores.values()))
    return [{"kind": kind, **{name: _found(by_kind[kind]) for name, by_kind in scores.items()}} for kind in kinds]


def _found(score: Score) -> str:
    found = f"{len(score.delays)}/{score.events}" if score.events else ""
    false = f"{score.false_alarms} false" if score.false_alarms else ""
    return ", ".join(filter(None, (found, false))) or "quiet"


def cost(steps: int = 100_000) -> dict[str, float]:
    """Return microseconds per step and kB of one `LossWatch` after 1,000 and after `steps` losses."""
    source = Random(1)
    losses = [2.5 * math.exp(source.gauss(0, 0.02)) for _ in range(steps)]
    watch = LossWatch()
    began = time.perf_counter()
    for step, loss in enumerate(losses):
        watch.observe(step, loss)
    spent = time.perf_counter() - began
    memory = []
    for count in (1_000, steps):
        tracemalloc.start()
        watch = LossWatch()
        for step in range(count):
            watch.observe(step, losses[step] + 0.0)  # a new float each, as from the wire of a real step
        memory.append(tracemalloc.get_traced_memory()[0] / 1000)
        tracemalloc.stop()
    return {"µs per step": 1e6 * spent / steps, "kB after 1,000": memory[0], f"kB after {steps:,}": memory[1]}


def measure(seeds: Sequence[int]) -> dict[str, list[dict[str, Any]]]:
    """Run the suite and return its tables by title."""
    scores = judge((make(seed) for make in loss_traces.SUITE for seed in seeds), RULES)
    healthy = judge(map(loss_traces.healthy, seeds[:HEALTHY_SEEDS]), RULES)
    lengths = [(seed, Random(seed).choice((1, 2, 3))) for seed in seeds]
    lengths += [(seed, Random(seed).randint(20, 200)) for seed in seeds]
    jumps = judge((loss_traces.gradient_norms(seed, length=n) for seed, n in lengths), GRADIENT_RULES)
    calm = (loss_traces.gradient_norms(seed, length=0, steps=100_000) for seed in seeds[:4])
    calm_scores = judge(calm, GRADIENT_RULES)
    return {
        "Loss": [{"rule": name, **summary(scores[name], healthy[name]["healthy"])} for name in RULES],
        "Loss, by kind of trace": rows_by_kind(scores),
        "Gradient norm": [
            {"rule": name, **summary(jumps[name], calm_scores[name]["healthy"])} for name in GRADIENT_RULES
        ],
    }


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `rows` as a Markdown table, without the columns that the document leaves out."""
    columns = [column for column in rows[0] if column not in LEFT_OUT]
    return "\n".join(table.markdown(columns, ([_cell(row[column]) for column in columns] for row in rows)))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.2f}"
    return str(value)


def write_document(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write the tables between the markers of docs/evidence/detectors.md."""
    before, _, after = DOCUMENT.read_text().split(FENCE)
    body = "\n\n".join(f"### {title}\n\n{markdown(rows)}" for title, rows in tables.items())
    DOCUMENT.write_text(f"{before}{FENCE}\n\n{body}\n\n{FENCE}{after}")


def main() -> None:
    """Print the tables and write bench/out/detectors.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=REPORTED.start, help="first seed")
    parser.add_argument("--seeds", type=int, default=len(REPORTED), help="number of seeds")
    parser.add_argument("--doc", action="store_true", help="write the tables into docs/evidence/detectors.md")
    options = parser.parse_args()
    began = time.perf_counter()
    tables = measure(range(options.first, options.first + options.seeds))
    for title, rows in tables.items():
        show(title, rows)
    costs = cost()
    show("LossWatch", [costs], f"the suite took {time.perf_counter() - began:.0f} s")
    if options.doc:
        write_document(tables)
    save("detectors", {**tables, "cost": costs})


if __name__ == "__main__":
    main()
