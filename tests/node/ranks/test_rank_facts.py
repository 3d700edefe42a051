"""Facts about a rank beside its state: its GPU, its batch job, its configuration and its peak."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tachograph.catalog.gpu import GPU_UP, MIG_INFO
from tachograph.node.ranks.frames import Peer
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample


def test_rank_info_joins_the_gpu(table: Any) -> None:
    """A uuid that this node knows gets its index; another one stands without; none is empty, and matches no GPU.

    The owner is the uid that the kernel gives, whatever the rank says.
    """
    for rank, uuid in enumerate(("GPU-bbbb", "GPU-zzzz", None)):
        table.greet(object(), rank=rank, uuid=uuid, local_rank=rank, world_size=3, attempt=2)
    infos = {key[1:] for key in table.shown() if key[0] == "rank_info"}
    assert infos == {
        ("r", "0", "0", "3", "2", "1", "GPU-bbbb", "1000"),
        ("r", "1", "1", "3", "2", "", "GPU-zzzz", "1000"),
        ("r", "2", "2", "3", "2", "", "", "1000"),
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

    def processes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def peak_flops(self, uuid: str, precision: str) -> float | None:
        return 989e12 if precision == "bf16" and any(gpu in H100S and gpu.uuid == uuid for gpu in self.known) else None


H100S = tuple(GpuIdentity(str(index), f"GPU-{index}{index}", "NVIDIA H100 80GB HBM3") for index in range(3))


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def rank_of(table_of: Any, node: Node) -> Any:
    """A rank table of that node."""
    return table_of(node)


def places(table: Any, hand: Any) -> list[tuple[str, ...]]:
    """Index and UUID of each rank's GPU, a second later."""
    hand.turn(1.0, table.tick)
    return [key[6:8] for key in table.shown() if key[0] == "rank_info"]


def test_a_rank_is_found_once_it_computes(rank_of: Any, node: Node, hand: Any) -> None:
    """GPUs and processes become known after the hello: each tick looks again, and the peak is that of the GPU found."""
    rank_of.greet(link := object(), visible_devices="2")
    rank_of.tell(link)
    assert places(rank_of, hand) == [("", "")]
    assert ("rank_peak_flops", "r", "0") not in rank_of.shown()
    node.known = H100S
    assert places(rank_of, hand) == [("2", "GPU-22")]
    node.computing = {rank_of.ME.pid: H100S[1]}
    assert places(rank_of, hand) == [("1", "GPU-11")]
    assert rank_of.shown()["rank_peak_flops", "r", "0"] == 989e12
    rank_of.greet(link, uuid="GPU-00")
    assert places(rank_of, hand) == [("1", "GPU-11")], "the driver knows better"
    node.computing = {rank_of.ME.pid: H100S[0]}
    assert places(rank_of, hand) == [("0", "GPU-00")]
    assert next(rank_of.ranks()).place[0] == "0"


def test_a_found_rank_stays_where_it_is(rank_of: Any, node: Node, hand: Any) -> None:
    """A lost GPU has no processes, and a dead rank's pid may be reused: its rank is still known."""
    node.known, node.computing = H100S, {rank_of.ME.pid: H100S[1]}
    rank_of.greet(link := object(), visible_devices="0")
    rank_of.tell(link)
    assert places(rank_of, hand) == [("1", "GPU-11")]
    node.computing = {}
    assert places(rank_of, hand) == [("1", "GPU-11")]
    rank_of.greet(other := object())  # the same process, connected again
    assert places(rank_of, hand) == [("1", "GPU-11")]
    node.known = ()
    assert places(rank_of, hand) == [("1", "GPU-11")]
    rank_of.lost(other)
    node.known, node.computing = H100S, {rank_of.ME.pid: H100S[2]}
    assert places(rank_of, hand) == [("1", "GPU-11")]


def test_another_process_is_looked_for_anew(rank_of: Any, node: Node, hand: Any) -> None:
    """Neither a successor nor a process that only has the same pid inherits a GPU."""
    node.known, node.computing = H100S, {rank_of.ME.pid: H100S[1]}
    rank_of.greet(link := object())
    rank_of.tell(link, 50)
    rank_of.lost(link)
    node.computing = {}
    rank_of.greet(link := object())
    rank_of.tell(link, 1)
    assert places(rank_of, hand) == [("", "")]
    node.computing = {rank_of.OTHER.pid: H100S[2]}
    rank_of.lost(link)
    rank_of.greet(object(), rank_of.OTHER)
    assert places(rank_of, hand) == [("2", "GPU-22")]


def test_only_the_kernels_word_on_a_pid_counts(rank_of: Any, node: Node, hand: Any) -> None:
    """A rank may say any pid; in a container it says 7, and on the node 7 is somebody else."""
    node.known, node.computing = H100S, {7: H100S[1], 4242: H100S[2]}
    rank_of.greet(object(), Peer(1000, 0), pid=7, rank=0)
    rank_of.greet(object(), Peer(1000, 4242), pid=7, rank=1)
    assert places(rank_of, hand) == [("", ""), ("2", "GPU-22")]


def test_a_rank_on_a_mig_instance(rank_of: Any, node: Node, hand: Any) -> None:
    """The instance's UUID leads to its GPU by gpu_mig_info; where that is not known it stands as it was given."""
    node.known = H100S
    rank_of.greet(object(), uuid="MIG-77")
    assert places(rank_of, hand) == [("", "MIG-77")]
    row = Sample(MIG_INFO, ("1", "GPU-11", "1/0", "MIG-77", "1g.10gb"), 1)
    node.rows = (Sample(GPU_UP, ("1", "GPU-11"), 1), row)
    assert places(rank_of, hand) == [("1", "GPU-11")]


def test_an_unknown_device_is_told_once(rank_of: Any, node: Node, hand: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One line for a device without a peak, which says how to give one; none where the rank gave it, or is known."""
    node.known = (*H100S[:1], *(GpuIdentity(str(n), f"GPU-{n}{n}", "NVIDIA Unheard Of") for n in (1, 2, 3)))
    rank_of.greet(object(), rank=0, uuid="GPU-00")
    rank_of.greet(object(), rank=1, uuid="GPU-11", facts={"peak_flops": 1e15})
    places(rank_of, hand)
    assert caplog.records == []
    rank_of.greet(link := object(), rank=2, uuid="GPU-22")
    rank_of.greet(object(), rank=3, uuid="GPU-33")
    rank_of.tell(link)
    places(rank_of, hand)
    (line,) = caplog.records
    assert (line.device, line.precision, line.run) == ("NVIDIA Unheard Of", "bf16", "r")  # type: ignore[attr-defined]
    assert "pass peak_flops= to Recorder" in line.message
    assert ("rank_peak_flops", "r", "2") not in rank_of.shown()


def jobs(table: Any) -> set[tuple[str, ...]]:
    return {key[2:] for key in table.shown() if key[0] == "rank_job_info"}


def test_job_facts(table: Any) -> None:
    """The batch job of a rank is one series; a rank without one has none."""
    table.greet(object(), rank=0, job={"scheduler": "slurm", "job_id": "4711_3"})
    table.greet(object(), rank=1, job={"scheduler": "kubernetes", "namespace": "ml", "pod": "llama-0", "node": "n"})
    table.greet(object(), rank=2)
    table.greet(object(), rank=3, job={})
    assert jobs(table) == {("0", "slurm", "4711_3", "", ""), ("1", "kubernetes", "", "ml", "llama-0")}
    assert not any(table.dropped.values())


def coordinates(table: Any) -> set[tuple[str, ...]]:
    return {key[2:] for key in table.shown() if key[0] == "rank_coordinates_info"}


def test_coordinates(table: Any) -> None:
    """Where a rank is in the run's parallelism is one series; a dimension of a later version is left out.

    Several are written in one label; a single one is the rank's number.
    """
    table.greet(object(), rank=0, coordinates={"tp": 1, "pp": 3, "hyper": 9})
    table.greet(object(), rank=1, coordinates={})
    table.greet(object(), rank=2)
    table.greet(object(), rank=3, coordinates={"dp": 3})
    assert coordinates(table) == {
        ("0", "3", "1", "", "", "", "", "pp 3, tp 1"),
        ("3", "", "", "", "", "3", "", ""),
    }
    assert not any(table.dropped.values())


@pytest.mark.parametrize("wrong", [-1, True, "3", 1.5, None, [3], 2**53 + 1])
def test_a_wrong_coordinate_costs_itself(table: Any, wrong: object) -> None:
    """The others stand, and so does the hello."""
    table.greet(object(), coordinates={"pp": wrong, "tp": 1})
    assert coordinates(table) == {("0", "", "1", "", "", "", "", "")}
    assert table.dropped["wrong_type"] == (wrong is not None)


@pytest.mark.parametrize("wrong", ["pp", 3, [], True])
def test_coordinates_that_are_no_object_are_counted(table: Any, wrong: object) -> None:
    """They cost themselves."""
    table.greet(object(), coordinates=wrong)
    assert coordinates(table) == set()
    assert table.dropped["wrong_type"] == 1


@pytest.mark.parametrize("wrong", [7, True, ["4711"], {"id": 1}, "x" * 129, "a\nb", "\x1b[31m", "a\u2028b"])
def test_a_wrong_fact_costs_itself(table: Any, wrong: object) -> None:
    """A job id, or a list of devices, that is no short printable text is left out and counted; the rest stands."""
    table.greet(object(), job={"scheduler": "slurm", "job_id": wrong, "pod": "p" * 128})
    assert jobs(table) == {("0", "slurm", "", "", "p" * 128)}
    assert table.dropped["wrong_type"] == 1
    table.greet(object(), rank=1, visible_devices=wrong if wrong != "x" * 129 else "0," * 513, granted_devices=wrong)
    assert table.dropped["wrong_type"] >= 2


@pytest.mark.parametrize("wrong", ["4711", 4711, [], [{"job_id": "1"}], True])
def test_a_job_that_is_no_object_is_counted(table: Any, wrong: object) -> None:
    """It costs the job facts, not the hello."""
    table.greet(object(), job=wrong)
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
def test_peak_flops(table: Any, uuid: str | None, facts: dict[str, object], peak: float | None) -> None:
    """The rank's own figure comes first, else the GPU table at the rank's precision; unknown is absent, never 0."""
    table.greet(link := object(), uuid=uuid, facts=facts)
    table.tell(link)
    assert table.shown().get(("rank_peak_flops", "r", "0")) == peak


def test_config_facts(table: Any) -> None:
    """Known facts become labels as text; no text or number, one too long, a tier of its own: empty and counted."""
    table.greet(object(), rank=0, facts={
        "precision": "bf16", "global_batch": 1024, "flops_convention": "causal", "tier": "hero", "colour": ["ignored"],
    })  # fmt: skip
    wrong = {"precision": ["bf16"], "global_batch": True, "framework": "x" * 65, "tier": "urgent"}
    table.greet(object(), rank=1, facts=wrong)
    infos = {key[1:] for key in table.shown() if key[0] == "train_config_info"}
    assert infos == {("r", "0", "bf16", "1024", "", "causal", "hero"), ("r", "1", "", "", "", "", "")}
    assert table.dropped["wrong_type"] == 4
