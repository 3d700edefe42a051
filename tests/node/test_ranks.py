"""The rank table: who may speak for a rank, what state it is in, and how long it is remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tachograph.catalog import GPU_UP, MIG_INFO, STATES
from tachograph.node.frames import Bye, Event, FrameError, Hello, State
from tachograph.node.limits import Limits
from tachograph.node.rank import Peer
from tachograph.node.ranks import SETTLING_SECONDS, RankTable
from tachograph.node.readings import GpuIdentity, GpuSnapshot, Sample

ME, OTHER = Peer(1000, 4242), Peer(1000, 4243)


class Link:
    """Stands for a connection."""


class Table(RankTable):
    """A rank table with a shorter way to speak to it."""

    def greet(self, link: Link, peer: Peer = ME, run: str = "r", rank: int = 0, **over: Any) -> Any:
        return self.hello(link, Hello(v=1, run=run, rank=rank, pid=over.pop("pid", peer.pid), **over), peer)

    def tell(self, link: Link, seq: int = 1, time: float = 100.0, **over: Any) -> None:
        self.heard(link)
        self.state(link, State(v=1, seq=seq, time=time, **over))

    def shown(self) -> dict[tuple[str, ...], float]:
        return {(s.metric.name[11:], *s.labels): getattr(s, "value", None) for s in self.samples()}

    def states(self, run: str = "r", rank: str = "0") -> list[str]:
        shown = self.shown()
        return [state for state in STATES if shown.get(("rank_state", run, rank, state))]


@pytest.fixture
def table(hand: Any, two_gpus: Any) -> Table:
    return Table(Limits(), hand.clock, two_gpus)


def test_a_speaking_rank_runs(table: Table, hand: Any) -> None:
    """Connected and speaking is running: up, exactly one state, and its last frame's time by the exporter's clock."""
    table.greet(link := Link())
    for seq in range(30):
        hand.turn(1.0)
        table.tell(link, seq)
    assert table.states() == ["running"]
    assert table.shown()["rank_up", "r", "0"] == 1
    assert table.shown()["rank_heartbeat_timestamp_seconds", "r", "0"] == hand.epoch + 30


def test_silence_is_frozen_not_dead(table: Table, hand: Any) -> None:
    """Connected and silent for more than 10 s is frozen; the rank stays up, and one frame brings it back."""
    table.greet(link := Link())
    table.tell(link, phase="backward", phase_since=99.0)
    hand.turn(10.0, table.tick)
    assert table.states() == ["running"]
    hand.turn(0.5, table.tick)
    assert table.states() == ["frozen"]
    shown = table.shown()
    assert shown["rank_up", "r", "0"] == 1
    assert shown["rank_phase_seconds", "r", "0", "backward"] == pytest.approx(11.5)
    table.heard(link)
    assert table.states() == ["running"]


def test_an_exporter_that_was_stopped_does_not_accuse_its_ranks(table: Table, hand: Any) -> None:
    """Silence while the exporter itself did not run is no silence; from then on it counts."""
    table.greet(Link())
    hand.turn(1.0, table.tick)
    hand.turn(60.0)  # no tick: SIGSTOP, or a starved machine
    assert table.states() == ["running"]
    hand.turn(11.0, table.tick)
    assert table.states() == ["frozen"]


def test_end_of_file_without_bye_is_dead(table: Table, hand: Any) -> None:
    """A connection that ends without bye is a death: up 0, moment gauges gone, counters, step and times kept."""
    table.greet(link := Link())
    table.tell(link, step=7, phase="data", phase_since=99.0, progress_time=98.0,
               metrics={"loss": 1.0, "tokens_total": 5}, dropped=3)  # fmt: skip
    table.lost(link)
    shown = table.shown()
    assert table.states() == ["dead"]
    assert shown["rank_up", "r", "0"] == 0
    assert shown["train_step", "r", "0"] == 7
    assert shown["train_tokens_total", "r", "0"] == 5
    assert shown["rank_progress_timestamp_seconds", "r", "0"] == 98.0
    assert shown["exporter_client_dropped_total", "r", "0"] == 3
    assert ("train_loss", "r", "0") not in shown
    assert ("rank_phase_seconds", "r", "0", "data") not in shown


@pytest.mark.parametrize(("outcome", "up"), [("finished", 1), ("failed", 0)])
def test_bye_is_neither_dead_nor_frozen(table: Table, hand: Any, outcome: Any, up: int) -> None:
    """A bye decides the state for good: the end of file that follows it changes nothing."""
    table.greet(link := Link())
    table.bye(link, Bye(v=1, outcome=outcome, category="oom", message="CUDA out of memory"))
    assert table.lost(link) is None
    hand.turn(60.0, table.tick)
    assert table.states() == [outcome]
    assert table.shown()["rank_up", "r", "0"] == up


@pytest.mark.parametrize(("end", "seconds"), [("dead", 900), ("failed", 900), ("finished", 120)])
def test_retention(table: Table, hand: Any, end: Any, seconds: int) -> None:
    """Dead and failed ranks stay visible for 15 minutes, finished ones for 2; then nothing of the run is left."""
    table.greet(link := Link())
    table.tell(link)
    if end == "dead":
        table.lost(link)
    else:
        table.bye(link, Bye(v=1, outcome=end))
    hand.turn(seconds)
    assert table.states() == [end]
    hand.turn(1.0)
    assert [key for key in table.shown() if "r" in key[1:]] == []


def test_hello_tells_the_last_step(table: Table) -> None:
    """A rank that returns learns the step it was at; a new one gets None."""
    link = Link()
    assert table.greet(link).last_step is None
    table.tell(link, step=480)
    table.lost(link)
    assert table.greet(Link(), OTHER).last_step == 480
    assert table.states() == ["running"]


def test_the_same_process_may_reconnect(table: Table) -> None:
    """A second connection of the same process takes over at once, and the old one's end kills nobody."""
    table.greet(old := Link())
    table.tell(old, 5, metrics={"tokens_total": 9})
    new = Link()
    assert table.greet(new).superseded is old
    assert table.lost(old) is None
    with pytest.raises(FrameError) as refusal:
        table.tell(old, 6)
    assert refusal.value.reason == "no_hello"
    table.tell(new, 6, metrics={"tokens_total": 8})
    assert table.shown()["train_tokens_total", "r", "0"] == 9, "the lineage goes on: counters do not fall"
    assert table.dropped["counter_decrease"] == 1


def test_a_living_rank_cannot_be_taken_over(table: Table) -> None:
    """Another process in the same attempt is refused while the rank lives, and welcome once it is dead."""
    table.greet(link := Link())
    with pytest.raises(FrameError, match="held by pid 4242 in attempt 0") as refusal:
        table.greet(Link(), OTHER)
    assert refusal.value.reason == "conflict"
    table.tell(link)
    table.lost(link)
    table.greet(Link(), OTHER)
    assert table.states() == ["running"]


def test_a_higher_attempt_replaces(table: Table) -> None:
    """A restarted rank takes the place of one that hangs on, and its counters start again; a lower one does not."""
    table.greet(old := Link(), attempt=1)
    table.tell(old, metrics={"tokens_total": 9})
    with pytest.raises(FrameError):
        table.greet(Link(), OTHER, attempt=0)
    new = Link()
    assert table.greet(new, OTHER, attempt=2).superseded is old
    table.tell(new, metrics={"tokens_total": 1})
    assert table.shown()["train_tokens_total", "r", "0"] == 1
    assert table.dropped["counter_decrease"] == 0


def test_a_sequence_that_starts_again_is_another_process(table: Table) -> None:
    """In containers all pids are alike: a state whose seq starts again resets the counters instead of being refused."""
    table.greet(link := Link(), Peer(1000, 0), pid=7)
    table.tell(link, 50, metrics={"tokens_total": 900})
    table.lost(link)
    table.greet(link := Link(), Peer(1000, 0), pid=7)
    table.tell(link, 1, metrics={"tokens_total": 4})
    assert table.shown()["train_tokens_total", "r", "0"] == 4
    assert table.dropped["counter_decrease"] == 0


def test_nothing_counted_is_shown_before_the_first_state(table: Table) -> None:
    """Between hello and state, zeros would look like counters that fell, to double when the exporter restarted."""
    table.greet(link := Link())
    known_at_hello = {"train_config_info", "train_restarts_total"}
    assert {key[0] for key in table.shown() if key[0].startswith("train_")} == known_at_hello
    table.tell(link)
    assert table.shown()["train_phase_seconds_total", "r", "0", "data"] == 0


def test_a_run_belongs_to_its_first_uid(table: Table) -> None:
    """Another uid is refused while any rank of the run is known, and only for that run."""
    table.greet(link := Link())
    with pytest.raises(FrameError, match="belongs to uid 1000, you are uid 1001") as refusal:
        table.greet(Link(), Peer(1001, 1), rank=1)
    assert refusal.value.reason == "owner"
    table.greet(Link(), Peer(1001, 1), run="theirs")
    table.bye(link, Bye(v=1, outcome="finished"))
    with pytest.raises(FrameError):
        table.greet(Link(), Peer(1001, 1))


def test_an_abandoned_run_can_be_owned_again(table: Table, hand: Any) -> None:
    """Once no rank of a run is known any more, its name is free."""
    table.greet(link := Link())
    table.lost(link)
    hand.turn(901.0, table.tick)
    table.greet(Link(), Peer(1001, 1))
    assert table.states() == ["running"]


def test_one_connection_speaks_for_one_rank(table: Table) -> None:
    """A second hello for another rank is refused; after a bye the connection is free again."""
    table.greet(link := Link())
    table.greet(link)
    with pytest.raises(FrameError, match="already speaks for rank 0 of run r"):
        table.greet(link, rank=1)
    table.bye(link, Bye(v=1, outcome="finished"))
    table.greet(link, rank=1)
    assert table.states(rank="1") == ["running"]


def test_living_ranks_push_out_dead_ones(hand: Any, two_gpus: Any) -> None:
    """At the limit the longest ended rank makes room; where all live, the newcomer is refused and they live on."""
    table = Table(Limits(ranks=2), hand.clock, two_gpus)
    table.greet(first := Link(), rank=0)
    table.greet(Link(), rank=1)
    with pytest.raises(FrameError, match="2 live ranks") as refusal:
        table.greet(Link(), rank=2)
    assert refusal.value.reason == "rank_limit"
    table.lost(first)
    table.greet(Link(), rank=2)
    assert {rank.key[1] for rank in table.ranks()} == {"1", "2"}


def test_the_only_rank_of_a_run_can_make_room_for_its_own_run(hand: Any, two_gpus: Any) -> None:
    """Making room may empty the very run that needs it."""
    table = Table(Limits(ranks=1), hand.clock, two_gpus)
    table.greet(link := Link(), rank=0)
    table.lost(link)
    table.greet(Link(), rank=1)
    assert [rank.key for rank in table.ranks()] == [("r", "1")]


def test_phase_runs_by_the_exporters_clock(table: Table, hand: Any) -> None:
    """Seconds in a phase come from the rank's two times, then from the exporter's clock; only that phase is present."""
    table.greet(link := Link())
    table.tell(link, time=5_000_000.0, phase="data", phase_since=4_999_998.0)
    hand.turn(3.0)
    assert table.shown()["rank_phase_seconds", "r", "0", "data"] == pytest.approx(5.0)
    table.tell(link, 2, time=100.0, phase="forward", phase_since=101.0)
    shown = table.shown()
    assert shown["rank_phase_seconds", "r", "0", "forward"] == 0.0
    assert ("rank_phase_seconds", "r", "0", "data") not in shown


def test_an_unknown_phase_is_counted(table: Table) -> None:
    """A phase outside the vocabulary is dropped and counted, and the frame stands."""
    table.greet(link := Link())
    table.tell(link, phase="lunch", phase_since=1.0, step=3)
    shown = table.shown()
    assert not [key for key in shown if key[0] == "rank_phase_seconds"]
    assert shown["train_step", "r", "0"] == 3
    assert table.dropped["unknown_phase"] == 1


def test_rank_info_joins_the_gpu(table: Table) -> None:
    """A uuid that this node knows gets its index; another one stands without; none is empty, and matches no GPU."""
    for rank, uuid in enumerate(("GPU-bbbb", "GPU-zzzz", None)):
        table.greet(Link(), rank=rank, uuid=uuid, local_rank=rank, world_size=3, attempt=2)
    infos = {key[1:] for key in table.shown() if key[0] == "rank_info"}
    assert infos == {
        ("r", "0", "0", "3", "2", "1", "GPU-bbbb"),
        ("r", "1", "1", "3", "2", "", "GPU-zzzz"),
        ("r", "2", "2", "3", "2", "", ""),
    }


@dataclass
class Node:
    """The GPU side of a node whose GPUs are moved by hand."""

    known: tuple[GpuIdentity, ...] = ()
    computing: dict[int, GpuIdentity] = field(default_factory=dict)
    rows: tuple[Sample, ...] = ()

    def snapshot(self) -> GpuSnapshot | None:
        return GpuSnapshot(self.rows, 0.0, 0.0, True, "") if self.rows else None

    def gpus(self) -> tuple[GpuIdentity, ...]:
        return self.known

    def gpu_of_pid(self, pid: int) -> GpuIdentity | None:
        return self.computing.get(pid)

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        return 989e12 if precision == "bf16" and any(gpu in H100S and gpu.uuid == uuid for gpu in self.known) else None


H100S = tuple(GpuIdentity(str(index), f"GPU-{index}{index}", "NVIDIA H100 80GB HBM3") for index in range(3))


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def rank_of(hand: Any, node: Node) -> Table:
    """A rank table of that node."""
    return Table(Limits(), hand.clock, node)


def places(table: Table, hand: Any) -> list[tuple[str, ...]]:
    """Index and UUID of each rank's GPU, a second later."""
    hand.turn(1.0, table.tick)
    return [key[6:] for key in table.shown() if key[0] == "rank_info"]


def test_a_rank_is_found_once_it_computes(rank_of: Table, node: Node, hand: Any) -> None:
    """GPUs and processes become known after the hello: each tick looks again, and the peak is that of the GPU found."""
    rank_of.greet(link := Link(), visible_devices="2")
    rank_of.tell(link)
    assert places(rank_of, hand) == [("", "")]
    assert ("rank_peak_flops", "r", "0") not in rank_of.shown()
    node.known = H100S
    assert places(rank_of, hand) == [("2", "GPU-22")]
    node.computing = {ME.pid: H100S[1]}
    assert places(rank_of, hand) == [("1", "GPU-11")]
    assert rank_of.shown()["rank_peak_flops", "r", "0"] == 989e12
    rank_of.greet(link, uuid="GPU-00")
    assert places(rank_of, hand) == [("0", "GPU-00")]
    assert rank_of.gpu_of(next(rank_of.ranks())) == "0"


def test_a_found_rank_stays_where_it_is(rank_of: Table, node: Node, hand: Any) -> None:
    """A lost GPU has no processes, and a dead rank's pid is somebody else's: who sat there is known all the same."""
    node.known, node.computing = H100S, {ME.pid: H100S[1]}
    rank_of.greet(link := Link(), visible_devices="0")
    rank_of.tell(link)
    assert places(rank_of, hand) == [("1", "GPU-11")]
    node.computing = {}
    assert places(rank_of, hand) == [("1", "GPU-11")]
    rank_of.greet(other := Link())  # the same process, connected again
    assert places(rank_of, hand) == [("1", "GPU-11")]
    node.known = ()
    assert places(rank_of, hand) == [("1", "GPU-11")]
    rank_of.lost(other)
    node.known, node.computing = H100S, {ME.pid: H100S[2]}
    assert places(rank_of, hand) == [("1", "GPU-11")]


def test_another_process_is_looked_for_anew(rank_of: Table, node: Node, hand: Any) -> None:
    """Neither a successor nor a process that only has the same pid inherits a GPU."""
    node.known, node.computing = H100S, {ME.pid: H100S[1]}
    rank_of.greet(link := Link())
    rank_of.tell(link, 50)
    rank_of.lost(link)
    node.computing = {}
    rank_of.greet(link := Link())
    rank_of.tell(link, 1)
    assert places(rank_of, hand) == [("", "")]
    node.computing = {OTHER.pid: H100S[2]}
    rank_of.lost(link)
    rank_of.greet(Link(), OTHER)
    assert places(rank_of, hand) == [("2", "GPU-22")]


def test_only_the_kernels_word_on_a_pid_counts(rank_of: Table, node: Node, hand: Any) -> None:
    """A rank may say any pid; in a container it says 7, and on the node 7 is somebody else."""
    node.known, node.computing = H100S, {7: H100S[1], 4242: H100S[2]}
    rank_of.greet(Link(), Peer(1000, 0), pid=7, rank=0)
    rank_of.greet(Link(), Peer(1000, 4242), pid=7, rank=1)
    assert places(rank_of, hand) == [("", ""), ("2", "GPU-22")]


def test_a_rank_on_a_mig_instance(rank_of: Table, node: Node, hand: Any) -> None:
    """The instance's UUID leads to its GPU by gpu_mig_info; where that is not known it stands as it was given."""
    node.known = H100S
    rank_of.greet(Link(), uuid="MIG-77")
    assert places(rank_of, hand) == [("", "MIG-77")]
    row = Sample(MIG_INFO, ("1", "GPU-11", "1/0", "MIG-77", "1g.10gb"), 1)
    node.rows = (Sample(GPU_UP, ("1", "GPU-11"), 1), row)
    assert places(rank_of, hand) == [("1", "GPU-11")]


def test_an_unknown_device_is_told_once(
    rank_of: Table, node: Node, hand: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for a device without a peak, which says how to give one; none where the rank gave it, or is known."""
    node.known = (*H100S[:1], *(GpuIdentity(str(n), f"GPU-{n}{n}", "NVIDIA Unheard Of") for n in (1, 2, 3)))
    rank_of.greet(Link(), rank=0, uuid="GPU-00")
    rank_of.greet(Link(), rank=1, uuid="GPU-11", facts={"peak_flops": 1e15})
    places(rank_of, hand)
    assert caplog.records == []
    rank_of.greet(link := Link(), rank=2, uuid="GPU-22")
    rank_of.greet(Link(), rank=3, uuid="GPU-33")
    rank_of.tell(link)
    places(rank_of, hand)
    (line,) = caplog.records
    assert (line.device, line.precision, line.run) == ("NVIDIA Unheard Of", "bf16", "r")  # type: ignore[attr-defined]
    assert "give peak_flops= to Recorder" in line.message
    assert ("rank_peak_flops", "r", "2") not in rank_of.shown()


def jobs(table: Table) -> set[tuple[str, ...]]:
    return {key[2:] for key in table.shown() if key[0] == "rank_job_info"}


def test_job_facts(table: Table) -> None:
    """What a rank says of its batch job is one series; of one that says nothing there is none."""
    table.greet(Link(), rank=0, job={"scheduler": "slurm", "job_id": "4711_3"})
    table.greet(Link(), rank=1, job={"scheduler": "kubernetes", "namespace": "ml", "pod": "llama-0", "node": "n"})
    table.greet(Link(), rank=2)
    table.greet(Link(), rank=3, job={})
    assert jobs(table) == {("0", "slurm", "4711_3", "", ""), ("1", "kubernetes", "", "ml", "llama-0")}
    assert not any(table.dropped.values())


@pytest.mark.parametrize("wrong", [7, True, ["4711"], {"id": 1}, "x" * 129, "a\nb", "\x1b[31m", "a\u2028b"])
def test_a_wrong_fact_costs_itself(table: Table, wrong: object) -> None:
    """A job id, or a list of devices, that is no short printable text is left out and counted; the rest stands."""
    table.greet(Link(), job={"scheduler": "slurm", "job_id": wrong, "pod": "p" * 128})
    assert jobs(table) == {("0", "slurm", "", "", "p" * 128)}
    assert table.dropped["wrong_type"] == 1
    table.greet(Link(), rank=1, visible_devices=wrong if wrong != "x" * 129 else "0," * 513, granted_devices=wrong)
    assert table.dropped["wrong_type"] >= 2


@pytest.mark.parametrize("wrong", ["4711", 4711, [], [{"job_id": "1"}], True])
def test_a_job_that_is_no_object_is_counted(table: Table, wrong: object) -> None:
    """It costs the job facts, not the hello."""
    table.greet(Link(), job=wrong)
    assert jobs(table) == set()
    assert table.states() == ["running"]
    assert table.dropped["wrong_type"] == 1


@pytest.mark.parametrize(
    ("uuid", "facts", "peak"),
    [
        ("GPU-aaaa", {"precision": "fp8"}, 1978.9e12),
        ("GPU-aaaa", {}, 989.4e12),
        ("GPU-aaaa", {"peak_flops": 5e12}, 5e12),
        (None, {"peak_flops": 5e12}, 5e12),
        ("GPU-zzzz", {}, None),
        (None, {"precision": "bf16"}, None),
        (None, {"peak_flops": 0}, None),
        (None, {"peak_flops": "NaN"}, None),
        (None, {"peak_flops": "fast"}, None),
    ],
)
def test_peak_flops(table: Table, uuid: str | None, facts: dict[str, object], peak: float | None) -> None:
    """The rank's own figure comes first, else the GPU table at the rank's precision; unknown is absent, never 0."""
    table.greet(link := Link(), uuid=uuid, facts=facts)
    table.tell(link)
    assert table.shown().get(("rank_peak_flops", "r", "0")) == peak


def test_config_facts(table: Table) -> None:
    """Known facts become labels as text; no text or number, one too long, a tier of its own: empty and counted."""
    table.greet(Link(), rank=0, facts={
        "precision": "bf16", "global_batch": 1024, "flops_convention": "causal", "tier": "hero", "colour": ["ignored"],
    })  # fmt: skip
    wrong = {"precision": ["bf16"], "global_batch": True, "framework": "x" * 65, "tier": "urgent"}
    table.greet(Link(), rank=1, facts=wrong)
    infos = {key[1:] for key in table.shown() if key[0] == "train_config_info"}
    assert infos == {("r", "0", "bf16", "1024", "", "causal", "hero"), ("r", "1", "", "", "", "", "")}
    assert table.dropped["wrong_type"] == 4


STEP = {"step_seconds": {"schema": 3, "sum": 1.0, "count": 2, "buckets": {"-8": 2}}}
STEPS = {"step_seconds": {"schema": 3, "sum": 2.0, "count": 4, "buckets": {"-8": 4}}}


def histogram(table: Table) -> tuple[int, float] | None:
    found = [s for s in table.samples() if s.metric.name == "tachograph_train_step_seconds"]
    return (found[0].cumulative[-1], found[0].sum) if found else None  # type: ignore[union-attr]


def test_step_times_survive_a_rank(table: Table, hand: Any) -> None:
    """The run's histogram never falls: not when a rank leaves, nor when its successor counts from nothing."""
    table.greet(first := Link())
    table.greet(second := Link(), OTHER, rank=1)
    table.tell(first, histograms=STEPS)
    table.tell(second, histograms=STEP)
    table.tell(second, 2, histograms=STEP)
    hand.turn(SETTLING_SECONDS)
    assert histogram(table) == (6, 3.0)
    table.lost(first)
    hand.turn(901.0, table.tick)
    assert histogram(table) == (6, 3.0)
    table.greet(first := Link())
    table.tell(first, histograms=STEP)
    assert histogram(table) == (8, 4.0)


def test_step_times_wait_until_the_ranks_are_back(table: Table, hand: Any) -> None:
    """For 3 s after a run is first seen its histogram is withheld: half the ranks would look like a counter reset."""
    table.greet(link := Link())
    table.tell(link, histograms=STEP)
    hand.turn(SETTLING_SECONDS - 0.1)
    assert histogram(table) is None
    hand.turn(0.2)
    assert histogram(table) == (2, 1.0)


def test_bad_histograms_are_counted(table: Table, hand: Any) -> None:
    """An unreadable histogram, an unknown one and one that fell are dropped under their reasons."""
    table.greet(link := Link())
    table.tell(link, 1, histograms=STEPS)
    table.tell(link, 2, histograms=STEP)
    table.tell(link, 3, histograms={"step_seconds": 1, "lunch_seconds": STEP})
    hand.turn(SETTLING_SECONDS)
    assert histogram(table) == (4, 2.0)
    assert {reason: n for reason, n in table.dropped.items() if n} == {
        "counter_decrease": 1, "bad_histogram": 1, "unknown_metric": 1,
    }  # fmt: skip


def test_events_are_kept_once(table: Table) -> None:
    """A repeated event is known by its id within a process; another process may use the id again; 64 are kept."""
    table.greet(link := Link())
    one, two = Event(id=1, kind="checkpoint_saved", time=1.0, step=4), Event(id=2, kind="loss_spike", time=2.0)
    table.tell(link, 1, events=[one])
    table.tell(link, 2, events=[one, two])
    assert [moment.event.id for moment in table.moments] == [1, 2]
    table.lost(link)
    table.greet(link := Link(), OTHER)
    table.tell(link, 1, events=[one])
    assert len(table.moments) == 3
    table.tell(link, 2, events=[Event(id=n, kind="k", time=1.0) for n in range(2, 66)])
    table.tell(link, 3, events=[Event(id=66, kind="k", time=1.0)])
    assert len(table.moments) == 64


def test_waiting_share(table: Table, hand: Any) -> None:
    """The landing page's wait is exposed wait over time of the last frames; unknown where there are no two."""
    table.greet(link := Link())
    rank = next(table.ranks())
    for seq in range(5):
        table.tell(
            link, seq, metrics={"collective_wait_seconds_total": {"all_reduce": 0.2 * seq, "barrier": 0.1 * seq}}
        )
        assert (rank.wait_share() is None) == (seq == 0)
        hand.turn(1.0)
    assert rank.wait_share() == pytest.approx(0.3)
