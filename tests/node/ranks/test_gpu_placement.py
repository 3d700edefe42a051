"""The GPU of a rank: the strongest source wins, a wrong GPU is never shown, and one that was found is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tachograph.node.ranks.frames import Hello
from tachograph.node.ranks.gpu_placement import DeviceGrant, GpuPlacement, GpuResolver
from tachograph.node.samples import GpuIdentity

H100 = "NVIDIA H100 80GB HBM3"
EIGHT = tuple(GpuIdentity(str(index), f"GPU-{index:08x}-{'ab' * 6}", H100) for index in range(8))
UUIDS = [gpu.uuid for gpu in EIGHT]
MIXED = (EIGHT[0], GpuIdentity("1", "GPU-l4l4", "NVIDIA L4"))
UNREADABLE = (*EIGHT[:2], GpuIdentity("2", "", ""))


def sitting(
    visible: str = "", granted: str = "", local_rank: int = 0, *, uuid: str | None = None, pid: int = 0,
    gpus: tuple[GpuIdentity, ...] = EIGHT, pids: dict[int, GpuIdentity] | None = None, mig: Any = None,
    processes: dict[str, tuple[int, ...]] | None = None,
) -> str | None:  # fmt: skip
    """The index of the GPU a rank is found on, and None where it is found on none."""
    placement = GpuPlacement()
    resolver = GpuResolver(gpus, (pids or {}).get, lambda: mig or {}, processes)
    placement.update(
        resolver, Hello(v=1, run="r", rank=0, local_rank=local_rank, uuid=uuid), pid, DeviceGrant(visible, granted)
    )
    return placement.gpu.index if placement.gpu is not None else None


def test_the_drivers_word_comes_first() -> None:
    """NVML's list takes precedence over what the rank says, which takes precedence over the launcher's variables."""
    everything: dict[str, Any] = {"visible": "3", "pid": 7, "pids": {7: EIGHT[2]}}
    assert sitting(**everything, uuid=UUIDS[1]) == "2"
    assert sitting(**{**everything, "pid": 8}, uuid=UUIDS[1]) == "1"
    assert sitting(**{**everything, "pid": 8}) == "3"


def test_of_several_gpus_on_which_a_process_is_listed_its_claim_decides() -> None:
    """A program often has a stray context on GPU 0, also before that on its own; another GPU it cannot choose."""
    placement, hello = GpuPlacement(), Hello(v=1, run="r", rank=3, local_rank=3, uuid=UUIDS[3])
    for processes, index in (
        ({UUIDS[0]: (7,)}, "0"),
        ({UUIDS[0]: (7,), UUIDS[3]: (7,)}, "3"),
        ({UUIDS[0]: (7,), UUIDS[5]: (7,)}, "3"),
        ({}, "3"),
        ({UUIDS[5]: (7,)}, "5"),
    ):
        on = [gpu for gpu in EIGHT if 7 in processes.get(gpu.uuid, ())]
        resolver = GpuResolver(EIGHT, {7: on[0]}.get if len(on) == 1 else lambda _: None, dict, processes)
        placement.update(resolver, hello, 7, DeviceGrant("", ""))
        assert placement.gpu is not None
        assert (placement.gpu.index, placement.is_of_driver) == (index, True), processes
    assert sitting(visible="2", pid=7, processes={UUIDS[0]: (7,), UUIDS[2]: (7,)}) == "2"


def test_a_uuid_of_another_node_leaves_the_word_to_the_others() -> None:
    """An unknown UUID names no GPU, and the other sources are still used."""
    assert sitting(uuid="GPU-ffff", pid=7, pids={7: EIGHT[2]}) == "2"
    assert sitting(uuid="GPU-ffff") is None
    assert sitting(uuid=UUIDS[0][:9]) is None, "the start of one is no UUID"


@pytest.mark.parametrize("pid", [0, -1])
def test_a_process_the_kernel_cannot_name_is_nobody(pid: int) -> None:
    """Across pid namespaces every pid is 0, which must not match a process that NVML lists as 0."""
    assert sitting(pid=pid, pids={0: EIGHT[2], -1: EIGHT[2]}) is None


def test_a_rank_that_was_left_nothing_has_no_gpu() -> None:
    """A CPU run on a GPU node is given no GPU, be there eight or one."""
    assert sitting(local_rank=3) is None
    assert sitting(gpus=EIGHT[:1]) is None


@pytest.mark.parametrize(
    ("visible", "local_rank", "index"),
    [
        ("5", 0, "5"),
        ("5", 3, "5"),  # the only one there is, whichever place the rank has
        ("4,5,6", 1, "5"),
        (" 6 , 2 ", 1, "2"),
        ("4,5", 2, None),
        ("0007", 0, "7"),
        ("8", 0, None),
        ("-1", 0, None),
        ("NoDevFiles", 0, None),
        ("1,-1,2", 1, "1"),  # CUDA stops at what it cannot read: one is grant
        ("1,2,x,3", 3, None),
        ("1,,2", 1, "1"),
        (UUIDS[3], 0, "3"),
        (f"{UUIDS[3]},{UUIDS[1]}", 1, "1"),
        ("GPU-00000006", 0, "6"),  # CUDA takes the start of a UUID where it is the only one
        ("GPU-0000", 0, None),
        ("GPU-", 0, None),
        ("gpu-0006", 0, None),
        ("٣", 0, None),
        ("0," * 64 + "5", 64, None),  # more devices than a node has
    ],
)
def test_visible_devices(visible: str, local_rank: int, index: str | None) -> None:
    """Numbers and UUIDs as CUDA reads them: the only one, else the one at the rank's place on the node."""
    assert sitting(visible, local_rank=local_rank) == index


@pytest.mark.parametrize(
    ("visible", "granted", "local_rank", "index"),
    [
        ("0", "5", 0, "5"),
        ("1,0", "2,6", 0, "6"),
        ("0,1", "6,2", 0, "2"),  # CUDA numbers what was granted in the node's order
        ("", f"{UUIDS[6]},{UUIDS[2]}", 1, "6"),
        ("", UUIDS[6], 4, "6"),
        (UUIDS[6], f"{UUIDS[6]},{UUIDS[2]}", 0, "6"),
        ("2", "2,6", 0, None),
        ("0", "void", 0, None),
        ("0", "all", 0, None),
        ("", "5,9", 0, None),  # one of them is not of this node: whose numbers are these?
        ("0", f"{UUIDS[5]},GPU-ffff", 0, None),
    ],
)
def test_numbers_count_what_was_granted(visible: str, granted: str, local_rank: int, index: str | None) -> None:
    """In a container or a confined job, number 0 is the first device it was granted, and not the node's."""
    assert sitting(visible, granted, local_rank) == index


def test_numbers_mean_nothing_where_gpus_differ() -> None:
    """CUDA numbers the fastest first and NVML by bus: on a mixed node, or with a GPU missing, only names tell."""
    for gpus in (MIXED, UNREADABLE):
        assert sitting("0", gpus=gpus) is None
        assert sitting("", "0,1", local_rank=1, gpus=gpus) is None
        assert sitting(f"{gpus[1].uuid}", gpus=gpus) == "1"
        assert sitting("0", "1", gpus=gpus) == "1", "of a single granted device there is no order"


def test_numbers_mean_nothing_once_a_gpu_was_unplugged() -> None:
    """NVML has given its index to another GPU, and it is unknown which other sources are renumbered."""
    twice = (*EIGHT[:2], GpuIdentity("1", "GPU-came-later", H100))
    assert sitting("1", gpus=twice) is sitting("0", "1", gpus=twice) is sitting("", "0,1", gpus=twice) is None
    assert sitting(UUIDS[1], gpus=twice) == sitting("0", "GPU-came-later", gpus=twice) == "1"


def test_a_mig_instance_is_its_gpu() -> None:
    """A rank on an instance sits on the whole GPU, under either spelling, and as PyTorch writes it."""
    mig = {"MIG-1234-56": UUIDS[4]}
    assert sitting("MIG-1234-56", mig=mig) == sitting(granted="MIG-1234-56", mig=mig) == "4"
    assert sitting(uuid="MIG-1234-56", mig=mig) == sitting(uuid="GPU-1234-56", mig=mig) == "4"
    assert sitting(f"MIG-{UUIDS[4]}/1/0") == sitting(uuid=f"MIG-{UUIDS[4]}/1/0") == "4"
    assert sitting("MIG-9999", mig=mig) is None
    assert sitting("0", "MIG-1234-56,MIG-1234-57", mig={**mig, "MIG-1234-57": UUIDS[4]}) == "4"


class Said:
    """A resolver with made-up answers of the three sources."""

    def __init__(self, *gpus: int | None) -> None:
        self._answers = [EIGHT[gpu] if gpu is not None else None for gpu in gpus]

    def answers(self, *_: object) -> Iterator[GpuIdentity | None]:
        return iter(self._answers)

    def renumbered(self, gpu: GpuIdentity) -> GpuIdentity:
        return gpu


def test_a_weaker_word_never_overrules() -> None:
    """Once found a rank stays, unless the same source says otherwise or a stronger one speaks: nothing flaps."""
    placement = GpuPlacement()
    found = []
    for said in (
        Said(None, None, None), Said(None, None, 0), Said(None, 1, 0), Said(None, None, 0), Said(None, 2, 0),
        Said(3, 2, 0), Said(None, 2, 0), Said(None, None, None),
    ):  # fmt: skip
        placement.update(said, Hello(v=1, run="r", rank=0), 0, DeviceGrant("", ""))  # type: ignore[arg-type]
        found.append(placement.gpu.index if placement.gpu is not None else None)
    assert found == [None, "0", "1", "1", "2", "3", "3", "3"]


def test_a_rank_stays_on_its_gpu_when_another_is_unplugged() -> None:
    """NVML counts anew: the rank's GPU is the same one, under the index it has now, and its numbers mean what they did
    when it started; other numbers are read again.
    """  # noqa: D205
    placement, hello, grant = GpuPlacement(), Hello(v=1, run="r", rank=0), DeviceGrant("5", "")
    placement.update(GpuResolver(EIGHT, lambda _: None, dict), hello, 0, grant)
    fewer = GpuResolver(
        [GpuIdentity(str(index), uuid, H100) for index, uuid in enumerate(UUIDS) if index != 3][:3]
        + [GpuIdentity(str(index - 1), uuid, H100) for index, uuid in enumerate(UUIDS) if index > 3],
        lambda _: None, dict,
    )  # fmt: skip
    for _ in range(2):
        placement.update(fewer, hello, 0, grant)
        assert placement.gpu == GpuIdentity("4", UUIDS[5], H100)
    placement.update(fewer, hello, 0, DeviceGrant("6", ""))
    assert placement.gpu == GpuIdentity("6", UUIDS[7], H100)


@pytest.mark.parametrize(
    "hostile",
    ["," * 1024, "0," * 512, ",".join(["GPU-00000000"] * 78), "9" * 1024, "GPU-" + "a" * 1020, "\x00\n", "💥,0"],
)
def test_hostile_lists_cost_little(hostile: str) -> None:
    """Whatever a list of 1 KiB holds, it is read in no more than a few calls per character, and raises nothing."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        sitting(hostile, local_rank=2**53)
        sitting("0", hostile)
    finally:
        sys.setprofile(None)
    assert calls < 4000


def test_one_rank_is_shown_for_each_gpu(table: Any, hand: Any) -> None:
    """Of two that share it the first, while it lives; then the other; once all have ended, the one that did so last."""

    def on(uuid: str) -> dict[str, float | None]:
        return {key[2]: value for key, value in table.shown().items() if key[0] == "rank_on_gpu" and key[4] == uuid}

    for rank in (0, 1):
        table.greet(rank, rank=rank, pid=10 + rank, uuid="GPU-aaaa")
    table.greet(2, rank=2, pid=12)
    assert on("GPU-aaaa") == {"0": 1}
    assert table.shown()["rank_on_gpu", "r", "0", "0", "GPU-aaaa", "NVIDIA H100 80GB HBM3"] == 1
    assert not on("GPU-bbbb")
    table.lost(0)
    assert on("GPU-aaaa") == {"1": 1}
    hand.turn(1)
    table.lost(1)
    assert on("GPU-aaaa") == {"1": 0}
