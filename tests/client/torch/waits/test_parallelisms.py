"""Real jobs of gloo ranks under each parallelism: who computes longest waits least, and nothing changes."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab.processes import free_port
from tests.torch_programs import TorchPrograms, parallelism_is_public, torch_has

JOB = Path(__file__).with_name("parallel_job.py")
SLOW_RANK = 2
THREE_DIMENSIONS = "hsdp_tensor"
FSDP2 = ("fsdp2", "fsdp2_tensor", "hsdp", THREE_DIMENSIONS)
UNRIPE = ("1f1b", "interleaved", "sequence", "experts")
"""What PyTorch 2.4 cannot do on gloo, and all-to-all, of whose waits it shows a part."""

pytestmark = pytest.mark.torch

Seen = dict[str, list[dict[str, Any]]]


@pytest.fixture(
    scope="module",
    params=[
        ("fsdp2", "1f1b"),
        pytest.param(
            ("ddp", "hsdp", "tensor", "fsdp2_tensor", "experts", "gpipe", "all_reduce"), marks=pytest.mark.slow
        ),
        pytest.param(("fsdp1", "sequence", "interleaved", "megatron", "deepspeed", "futures"), marks=pytest.mark.slow),
        pytest.param((THREE_DIMENSIONS,), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def seen(request: pytest.FixtureRequest, torch_programs: TorchPrograms) -> Seen:
    """What each rank saw under each parallelism, one job after the other."""
    kinds: tuple[str, ...] = request.param
    if not torch_has("fully_shard", "torch.distributed.fsdp"):
        kinds = tuple(kind for kind in kinds if kind not in FSDP2)
    if not parallelism_is_public():
        kinds = tuple(kind for kind in kinds if kind not in UNRIPE)
    if not kinds:
        pytest.skip("this PyTorch has no FSDP2 on a CPU, and no 1F1B on gloo")
    job = torch_programs(
        JOB.read_text(encoding="utf-8"), *kinds, TACHOGRAPH_SOCKET="/nowhere/rank.sock", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()), WORLD_SIZE="8" if THREE_DIMENSIONS in kinds else "4",
    )  # fmt: skip
    try:
        said = job.end()
    finally:
        job.stop()
    lines = [line for line in said.splitlines() if line.startswith("[{")]
    return dict(zip(kinds, map(json.loads, lines), strict=True))


def lags(seen: list[dict[str, Any]], slowed: bool) -> list[float]:
    """Return by how much each rank's wait is below the median, as the rules reckon, in milliseconds a step."""
    waits = [rank["wait"][slowed] for rank in seen]
    return [statistics.median(waits) - wait for wait in waits]


def test_a_rank_that_computes_longer_waits_less_by_that(seen: Seen) -> None:
    """What one rank sleeps in its backward is its lag: longer than any other, and than any while all are well."""
    for kind, ranks in seen.items():
        slowed, healthy = lags(ranks, True), lags(ranks, False)
        assert slowed[SLOW_RANK] > ranks[SLOW_RANK]["slept"] / 2, (kind, slowed)
        assert max(lag for rank, lag in enumerate(slowed) if rank != SLOW_RANK) < slowed[SLOW_RANK], (kind, slowed)
        assert max(healthy) < slowed[SLOW_RANK], (kind, healthy)


def test_waits_are_no_part_of_the_phase_they_lie_in(seen: Seen) -> None:
    """The slow rank's own backward is longer than that of the others, which wait for it in theirs.

    But for DDP, whose wait is taken out of backward where a step's cost is reckoned.
    """
    for kind, ranks in seen.items():
        if kind != "ddp":
            backward = [rank["backward"][1] for rank in ranks]
            others = [own for rank, own in enumerate(backward) if rank != SLOW_RANK]
            assert backward[SLOW_RANK] > 1.5 * max(others), (kind, backward)


def test_losses_and_gradients_are_the_same_to_the_bit(seen: Seen) -> None:
    """Recorded and unrecorded training are one."""
    assert {kind: [rank["same"] for rank in ranks] for kind, ranks in seen.items()} == {
        kind: [True] * len(ranks) for kind, ranks in seen.items()
    }


def test_each_wait_is_counted_by_one_of_its_observers(seen: Seen) -> None:
    """DDP waits outside of Python, where its hook alone measures; everything else waits at PyTorch's functions."""
    for kind, ranks in seen.items():
        expected = ["all_reduce"] if kind == "ddp" else ["other"]
        assert [rank["operations"] for rank in ranks] == [expected] * len(ranks), kind
