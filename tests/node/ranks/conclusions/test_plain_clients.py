"""What a node concludes of clients that send little: what the protocol requires, and what the conclusion rests on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tachograph.node.ranks.frames import Bye, Event, Hello, Peer, State

PROTOCOL = Path(__file__).parents[4] / "docs/protocol.md"
NAN = "NaN"
CULPRIT = "2"

Told = dict[tuple[str, ...], float]


@dataclass
class Plain:
    """Four ranks on a node, of which each frame has what is required, and what it is given."""

    table: Any
    hand: Any
    _seq: dict[int, int] = field(default_factory=dict)

    def tell(self, rank: int, attempt: int = 0, facts: dict[str, Any] | None = None, **given: Any) -> None:
        """Send a frame: fields of a state by their name, the rest are metrics."""
        if rank not in self._seq:
            self._seq[rank] = 0
            hello = Hello(v=1, run="r", rank=rank, attempt=attempt, facts=facts or {})
            self.table.hello(rank, hello, Peer(1000, 100 * (attempt + 1) + rank))
        self._seq[rank] += 1
        metrics = {key: given.pop(key) for key in list(given) if key not in State.__struct_fields__}
        self.table.heard(rank)
        self.table.state(rank, State(v=1, seq=self._seq[rank], time=self.hand.clock.wall(), metrics=metrics, **given))

    def seconds(self, number: int, of: Callable[[int, int], dict[str, Any]], begin: int = 0) -> None:
        """Let time pass with a frame of each rank a second; `of` has what is given, by rank and second."""
        for second in range(begin, begin + number):
            for rank in range(4):
                self.tell(rank, **of(rank, second))
            self.hand.turn(1.0, self.table.tick)

    def end(self, rank: int, bye: Bye | None = None, attempt: int | None = None) -> None:
        """End a rank's process, with this word or without one; `attempt` begins another one."""
        if bye is None:
            self.table.lost(rank)
        else:
            self.table.bye(rank, bye)
        if attempt is not None:
            self._seq.pop(rank)
            self.hand.turn(1.0, self.table.tick)
            self.tell(rank, attempt=attempt)

    def told(self) -> Told:
        """Return the series of the run by name without its prefix and by labels other than the run's."""
        return {
            (sample.metric.name.removeprefix("tachograph_run_"), *sample.labels[1:]): float(sample.value)
            for sample in self.table.samples()
            if sample.metric.name.startswith("tachograph_run_")
        }


@pytest.fixture
def plain(table: Any, hand: Any) -> Plain:
    """A node without ranks."""
    return Plain(table, hand)


def presence(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {})
    plain.end(2)


def restart(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {})
    plain.end(2, attempt=1)


def failure(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {})
    plain.end(2, Bye(v=1, outcome="failed"))


def silence(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {})
    for _ in range(30):
        for rank in (0, 1, 3):
            plain.tell(rank)
        plain.hand.turn(1.0, plain.table.tick)


def fruitless(plain: Plain) -> None:
    for attempt in range(3):
        for rank in range(4):
            plain.tell(rank, attempt=attempt, step=7)
        plain.hand.turn(5.0, plain.table.tick)
        for rank in range(4):
            plain.end(rank)
            plain._seq.pop(rank)
        plain.hand.turn(5.0, plain.table.tick)


def ended_early(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {"step": 40 + second, "total_steps": 100})
    for rank in range(4):
        plain.end(rank, Bye(v=1, outcome="finished"))
    plain.hand.turn(40.0, plain.table.tick)


def stepping(rank: int, second: int) -> dict[str, Any]:
    return {"step": 40 + second}


def counting(rank: int, second: int) -> dict[str, Any]:
    return {"steps_total": second}


def pace(plain: Plain) -> None:
    plain.seconds(30, stepping)


def apart(plain: Plain) -> None:
    plain.seconds(3, lambda rank, second: {"step": (40 if rank == 2 else 44) + second})


def stand(plain: Plain, **of_all: Any) -> None:
    """Make steps for half a minute, then none: rank 2 waits for data, the others in backward for it."""
    plain.seconds(30, lambda rank, second: {**stepping(rank, second), "phase": "forward"})
    phases = {2: "data"}
    plain.seconds(40, lambda rank, second: {"step": 69, "phase": phases.get(rank, "backward"), **of_all})


def overdue(plain: Plain) -> None:
    plain.seconds(30, stepping)
    plain.seconds(40, lambda rank, second: {"step": 69})


def behind(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        step = min(second, 29)
        return {"step": 40 + step, "collective_enqueued": {"0": 2 * step + (rank != 2)}}

    plain.seconds(70, of)


def no_start(plain: Plain) -> None:
    plain.seconds(300, lambda rank, second: {"step": 0})


def speed(plain: Plain) -> None:
    plain.seconds(40, lambda rank, second: {"step": second, "tokens_total": 512 * second})


def late(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        wait = 0.05 if rank == 2 else 0.5
        return {"step": second, "phase_seconds_total": {"forward": (1 - wait) * second, "collective": wait * second}}

    plain.seconds(60, of)


def late_by_waits(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        return {"step": second, "collective_wait_seconds_total": {"all_reduce": second * (0.05 if rank == 2 else 0.5)}}

    plain.seconds(60, of)


def data_wait(plain: Plain) -> None:
    plain.seconds(40, lambda rank, second: {"step": second, "phase_seconds_total": {"data": 0.4 * second}})


def data_stall(plain: Plain) -> None:
    plain.seconds(30, lambda rank, second: {"step": second, "phase": "forward"})
    plain.seconds(20, lambda rank, second: {"step": 29, "phase": "data"})


def batches(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        return {"step": second, "batches_total": (3 if rank == 2 else 2) * second}

    plain.seconds(240, of)


def collectives(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        return {
            "step": second,
            "collective_bus_bytes_total": {"all_reduce": 8e9 * second},
            "collective_seconds_total": {"all_reduce": 0.25 * second},
        }

    plain.seconds(100, of)


def save_event(plain: Plain) -> None:
    plain.seconds(5, stepping)
    saved = Event(id=1, kind="checkpoint_saved", time=plain.hand.clock.wall(), step=44)
    plain.seconds(10, lambda rank, second: {"events": [saved] if rank == 0 else []})


def save_count(plain: Plain) -> None:
    plain.seconds(5, lambda rank, second: {"checkpoints_total": 1})
    plain.seconds(10, lambda rank, second: {"checkpoints_total": 2 if rank == 0 else 1})


def save_length(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        return {"phase_seconds_total": {"checkpoint": 12.0 if second > 3 else 0.0}}

    plain.seconds(10, of)


def saving(plain: Plain) -> None:
    plain.seconds(10, lambda rank, second: {"phase": "checkpoint" if rank == 2 else "forward"})


def save_failure(plain: Plain) -> None:
    plain.seconds(10, lambda rank, second: {"checkpoint_failures_total": 1} if rank == 2 and second > 3 else {})


def room(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {"checkpoint_free_ratio": 0.01 if rank == 2 else 0.5})


def lost_loss(plain: Plain) -> None:
    plain.seconds(10, lambda rank, second: {"step": 40 + second, "loss": NAN if rank == 2 and second > 4 else 2.5})


def loss_spike(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        return {"loss": 2.5, "loss_spikes_total": second > 4, "loss_spike_steps": max(0, second - 4)}

    plain.seconds(10, lambda rank, second: {key: float(value) for key, value in of(rank, second).items()})


def validation(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {"val_loss": 3.5, "val_loss_spike_evaluations": 2})


def lost_norm(plain: Plain) -> None:
    plain.seconds(40, lambda rank, second: {"step": 40 + second, "grad_norm": NAN if second > 9 else 1.0})


def vanished(plain: Plain) -> None:
    plain.seconds(40, lambda rank, second: {"step": 40 + second, "grad_norm": 0.0 if second > 9 else 1.0})


def norm_spike(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {"grad_norm": 9.0, "grad_norm_level": 1.0, "grad_norm_spike_steps": 3})


def scaling(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {"amp_loss_scale": 8.0, "amp_skipped_steps_total": second})


def schedule(plain: Plain) -> None:
    plain.seconds(10, lambda rank, second: {"step": second, "schedule_step": min(second, 4), "learning_rate": 0.1})


def invariant(plain: Plain) -> None:
    plain.seconds(100, lambda rank, second: {"invariant": {"vocabulary": 50_000 + (rank == 2)}})


def global_batch(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        return {"step": second, "facts": {"global_batch": 1024}, "invariant": {"global_batch": 512}}

    plain.seconds(100, of)


def leak(plain: Plain) -> None:
    growing = 2e6

    def of(rank: int, second: int) -> dict[str, Any]:
        return {"step": second, "host_memory_bytes": 1e9 + growing * second * (rank == 2)}

    for minute in range(100):
        for rank in range(4):
            plain.tell(rank, **of(rank, 60 * minute))
        plain.hand.turn(60.0, plain.table.tick)


def allocator(plain: Plain) -> None:
    def of(rank: int, second: int) -> dict[str, Any]:
        held = {"memory_reserved_bytes": 80e9, "memory_peak_bytes": 76e9}
        return {**held, "memory_inactive_bytes": 8e9 * (rank == 2), "memory_retries_total": second * (rank == 2)}

    plain.seconds(30, of)


def own_limit(plain: Plain) -> None:
    plain.seconds(2, lambda rank, second: {"threshold": {"hang_seconds": 90}} if rank == 2 else {})


class Case(NamedTuple):
    """What it rests on, how it comes about, and what is told of it: None stands for any number above 0."""

    needs: str
    play: Callable[[Plain], None]
    told: dict[tuple[str, ...], float | None]


SILENT = (
    "; pid 102: the process is stopped, swapped out, or stuck in the kernel. Look at its state there (ps -o "
    "pid,stat,wchan:32,cmd -p 102): T – continue it; D – its disk or file system hangs; R – something holds Python's "
    "lock."
)
STACK = ". Its whole stack: py-spy dump --pid 102 on its node, before anyone kills the run."


def named(name: str, *before: str, after: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the series of rank 2, whose GPU is not known."""
    return (name, *before, CULPRIT, *after)


CASES = {
    "which ranks there are, and which died": Case(
        "nothing else", presence,
        {("ranks", "running"): 3, ("ranks", "dead"): 1, ("first_end_seconds", "died", "died", "2", "", ""): 0},
    ),
    "restarts": Case("nothing else", restart, {("restarts", "1"): 1}),
    "a failure": Case(
        "a bye", failure, {("first_end_seconds", "failed", "exception", "2", "", ""): 0, ("ranks", "failed"): 1}
    ),
    "a rank that is silent": Case(
        "nothing else", silence, {named("frozen_seconds", after=("", "", "", "102", "", "", SILENT)): None}
    ),
    "attempts without a new step": Case("`step`", fruitless, {("fruitless_attempts",): 2}),
    "an end before the plan": Case("`step`, `total_steps`, a bye", ended_early, {("steps_short",): 59}),
    "the pace": Case("`step`", pace, {("step_seconds",): 1, ("train_step",): 69, ("steps_total",): 29}),
    "a rank at another step": Case("`step`", apart, {named("rank_step", after=("", "")): 42}),
    "a run that makes no step": Case("`step`", overdue, {("overdue_seconds",): None, ("train_step",): 69}),
    "who holds it up": Case(
        "`step`, `phase`", stand,
        {
            ("overdue_ranks", "backward"): 3, ("overdue_ranks", "data"): 1,
            named("hang_suspect_seconds", after=("", "", "data", "elsewhere", "102", "", f"in phase data{STACK}")): 40,
        },
    ),
    "who did not enter a collective": Case(
        "`step`, `collective_enqueued`", behind,
        {
            named(
                "hang_suspect_seconds", after=("", "", "unknown", "behind", "102", "", f"in phase unknown{STACK}")
            ): 0,
            named("hang_suspect_enqueued", after=("", "", "0")): 58,
            ("hang_enqueued", "0", "furthest", "in collective 59"): 59,
        },
    ),
    "a run that does not start": Case("`step`", no_start, {("start_stalled_seconds",): 300}),
    "the speed": Case("`step`, `tokens_total`", speed, {("speed", "tokens"): 512, ("work_per_second", "tokens"): 2048}),
    "a late rank": Case(
        "`step`, `phase_seconds_total` with `collective`", late,
        {named("least_wait_seconds", after=("", "", "")): 0.05, ("wait_seconds", ""): 0.5},
    ),
    "a late rank, by waits": Case(
        "`step`, `collective_wait_seconds_total`", late_by_waits,
        {named("least_wait_seconds", after=("", "", "")): 0.05, ("wait_seconds", ""): 0.5},
    ),
    "the wait for data": Case("`step`, `phase_seconds_total` with `data`", data_wait, {("data_wait_ratio",): 0.4}),
    "a run that stands still for data": Case("`step`, `phase`", data_stall, {("data_stall_seconds",): 8}),
    "batches per step": Case(
        "`step`, `batches_total`", batches, {named("batches_per_step", "greatest", after=("", "")): 3}
    ),
    "the bandwidth of collectives": Case(
        "`step`, `collective_bus_bytes_total`, `collective_seconds_total`", collectives,
        {("collective_bus_bandwidth_bytes", "all_reduce"): 32e9, ("collective_seconds",): 0.25},
    ),
    "the last save and its step": Case(
        "an event `checkpoint_saved`", save_event, {("unsaved_seconds",): 10, ("checkpoint_step",): 44}
    ),
    "the last save": Case("`checkpoints_total`", save_count, {("unsaved_seconds",): 10}),
    "how long saves take": Case(
        "`phase_seconds_total` with `checkpoint`", save_length, {("checkpoint_duration_seconds",): 12}
    ),
    "a save under way": Case("`phase`", saving, {("checkpoint_saving_seconds",): 10}),
    "a save that failed": Case("`checkpoint_failures_total`", save_failure, {named("checkpoint_failed_ranks"): 1}),
    "room for checkpoints": Case("`checkpoint_free_ratio`", room, {named("checkpoint_free_ratio"): 0.01}),
    "a loss that is not finite": Case(
        "`step`, `loss`", lost_loss,
        {
            named("loss_nonfinite_step", after=("", "")): 45, ("loss_nonfinite_ranks", "first"): 1,
            ("loss_nonfinite_ranks", "now"): 1,
        },
    ),
    "a spike of the loss": Case(
        "`loss`, `loss_spikes_total`, `loss_spike_steps`", loss_spike,
        {("loss_spike_steps",): 5, ("loss_spiked_seconds",): 4},
    ),
    "a spike of the validation loss": Case(
        "`val_loss`, `val_loss_spike_evaluations`", validation, {("val_loss_spike_evaluations",): 2}
    ),
    "a gradient norm that is not finite": Case("`step`, `grad_norm`", lost_norm, {("grad_norm_nonfinite_steps",): 30}),
    "a gradient that vanished": Case("`step`, `grad_norm`", vanished, {("grad_norm_vanished_steps",): 30}),
    "a spike of the gradient norm": Case(
        "`grad_norm`, `grad_norm_level`, `grad_norm_spike_steps`", norm_spike,
        {("grad_norm_level",): 1, ("grad_norm_spike_steps",): 3},
    ),
    "steps that mixed precision skips": Case(
        "`amp_loss_scale`, `amp_skipped_steps_total`", scaling,
        {("amp_loss_scale",): 8, ("amp_skipped_steps_total",): 1},
    ),
    "a learning rate that is stuck": Case(
        "`step`, `schedule_step`, `learning_rate`", schedule,
        {("schedule_idle_steps",): 5, ("learning_rate",): 0.1},
    ),
    "a number that differs": Case(
        "`invariant`", invariant, {named("invariant", "vocabulary", "greatest", after=("", "")): 50_001}
    ),
    "another global batch than configured": Case(
        "`step`, fact `global_batch`, `invariant` of that name", global_batch, {("global_batch_wrong_steps",): 99}
    ),
    "host memory that grows": Case(
        "`step`, `host_memory_bytes`", leak, {named("memory_leak_bytes_per_second", after=("", "", "host")): 2e6}
    ),
    "an allocator without room": Case(
        "`memory_reserved_bytes`, `memory_peak_bytes`, `memory_inactive_bytes`, `memory_retries_total`", allocator,
        {
            named("memory_fragmented_ratio", after=("", "")): 0.1, ("memory_peak_ratio",): 0.95,
            named("memory_retries", after=("", "")): None,
        },
    ),
    "limits of the run's own": Case("`threshold`", own_limit, {("threshold", "hang_seconds"): 90}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_plain_client_is_judged_like_any_other(plain: Plain, name: str) -> None:
    """With what is required, and what the conclusion rests on, it is drawn, with the rank and the step named."""
    case = CASES[name]
    case.play(plain)
    told = plain.told()
    for series, value in case.told.items():
        assert series in told, sorted(told)
        if value is None:
            assert told[series] > 0, series
        else:
            assert told[series] == pytest.approx(value, rel=0.01, abs=1e-6), series


def test_the_protocol_says_what_each_conclusion_needs() -> None:
    """The table of docs/protocol.md is that of this file."""
    section = PROTOCOL.read_text().partition("## What each conclusion needs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    assert dict(rows[1:]) == {name: case.needs for name, case in CASES.items()}
