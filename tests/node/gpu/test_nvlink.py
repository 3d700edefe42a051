"""NVLink on the made-up library: both ways of counting, all links together and each by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tachograph.node.driver.nvml import ALL_LINKS
from tachograph.node.gpu.reading_table import SLOW_SECONDS

NOT_SUPPORTED = 3
OneGpu = Callable[..., Any]


def test_nvlink_of_generation_5_fills_the_same_families(fake: Any, one_gpu: OneGpu) -> None:
    """The ids of generation 5 give the bytes and errors that older ids gave before, in bytes and not in KiB."""
    for field_id in (138, 139):
        fake.field_error(0, field_id, NOT_SUPPORTED, ALL_LINKS)
    for field_id in (38, 45, 52, 59):
        fake.field_error(0, field_id, NOT_SUPPORTED)
    for field_id, value in {202: 7000, 204: 8000, 213: 3, 214: 2, 219: 1}.items():
        fake.field(0, field_id, value, ALL_LINKS)
    told = one_gpu().at(0)
    assert told.family("nvlink_bytes_total") == {("transmit",): 7000, ("receive",): 8000}
    assert told.family("nvlink_errors_total") == {("recovery",): 3, ("recovery_failed",): 2, ("effective",): 1}
    assert told.shown >= {("nvlink_errors_total", "recovery_failed"), ("nvlink_errors_total", "effective")}


def test_a_part_that_answers_to_both_generations_is_read_once(fake: Any, one_gpu: OneGpu) -> None:
    """Where old and new ids both answer, the older gives the sample, and no sample is given twice."""
    fake.field(0, 138, 5, ALL_LINKS)
    fake.field(0, 202, 7000, ALL_LINKS)
    assert one_gpu().at(0).samples["nvlink_bytes_total", "transmit"] == 5 * 1024


def test_each_link_is_told_where_detail_is_asked_for(fake: Any, one_gpu: OneGpu) -> None:
    """With detail each link has its state, bytes and errors, from the second collection on, and all of it is detail."""
    fake.field(0, 165, 0, scope=3)
    fake.field(0, 138, 9, scope=2)
    fake.field(0, 161, 77, scope=17)
    fake.field_error(0, 163, NOT_SUPPORTED, scope=7)
    fake.field(0, 97, 66)  # what older parts have instead: CRC errors of link 7
    told = one_gpu(detail=True).at(0, 1)
    assert told.failures == {}
    assert told.family("nvlink_link_active") == {(str(link),): float(link != 3) for link in range(18)}
    assert told.samples["nvlink_link_bytes_total", "2", "transmit"] == 9 * 1024
    assert told.samples["nvlink_link_errors_total", "17", "replay"] == 77
    assert told.samples["nvlink_link_errors_total", "7", "crc_flit"] == 66
    assert not {key for key in told.shown if key[0].startswith("nvlink_link_")}


@pytest.mark.parametrize(("state", "active"), [(0, 17), (1, 18), (2, 18), (3, 17)])
def test_a_link_that_sleeps_is_up(fake: Any, one_gpu: OneGpu, state: int, active: int) -> None:
    """A link asleep counts as up, one that is inactive or carries no traffic does not."""
    fake.field(0, 165, state, scope=11)
    told = one_gpu().at(0)
    assert (told.samples["nvlink_links",], told.samples["nvlink_links_active",]) == (18, active)


@pytest.mark.parametrize("state", [2**32 - 1, 0x7FFFFFF0, 4, 0xBADF1100])
@pytest.mark.parametrize("links", [[3], range(18)])
def test_a_link_in_no_state_that_there_is_is_not_down(
    fake: Any, one_gpu: OneGpu, state: int, links: Sequence[int]
) -> None:
    """It is a failed reading; how many are up is not known then, and each of the others is."""
    for link in links:
        fake.field(0, 165, state, scope=link)
    told = one_gpu(detail=True).at(0, 1)
    assert told.samples["nvlink_links",] == 18
    assert ("nvlink_links_active",) not in told.samples
    known = {(str(link),): 1.0 for link in range(18) if link not in links}
    assert told.family("nvlink_link_active") == known
    assert set(told.failures) == {
        f"tachograph_gpu_{name} of GPU 0" for name in ("nvlink_links_active", "nvlink_link_active")
    }


def test_a_gpu_without_nvlink(fake: Any, one_gpu: OneGpu) -> None:
    """No NVLink is no family; NVLink with no link is a 0, for that is what the driver says."""
    fake.field_error(0, 91, NOT_SUPPORTED)
    fake.field(1, 91, 0)
    assert ("nvlink_links",) not in one_gpu(0).at(0).samples
    told = one_gpu(1).at(0)
    assert (told.samples["nvlink_links",], told.samples["nvlink_links_active",]) == (0, 0)


@pytest.mark.parametrize(("state", "status", "ready"), [(0, 0, None), (1, 0, 0), (2, 0, 0), (3, 0, 1), (3, 999, 0)])
def test_fabric(fake: Any, one_gpu: OneGpu, state: int, status: int, ready: int | None) -> None:
    """Joining the fabric is ready only when it is over and went well; a part without fabric has no sample."""
    fake.gpus[0].fabric[0], fake.gpus[0].fabric[1] = state, status
    told = one_gpu().at(0)
    assert (told.samples.get(("fabric_ready",)), told.failures) == (ready, {})


@pytest.mark.parametrize(
    ("mask", "faults"),
    [
        (0x0, set()),  # not supported
        (0x2, set()),
        (0x2AA, {"configuration"}),
        (0x1AA, set()),
        (0x1, {"bandwidth"}),
        (0x1A9, {"bandwidth"}),
        (0x1A6, {"route_recovery"}),
        (0x19A, {"route_unhealthy"}),
        (0x16A, {"access_timeout"}),
        (0x8AA, {"configuration"}),
        (0x555, {"bandwidth", "route_recovery", "route_unhealthy", "access_timeout", "configuration"}),
        (0xFFFFFFFF, set()),  # a blank
    ],
)
def test_what_is_wrong_with_the_fabric(fake: Any, one_gpu: OneGpu, mask: int, faults: set[str]) -> None:
    """Each bit of the health mask that says so is a sample, until it no longer does; nothing else is one."""
    collector = one_gpu()
    fake.gpus[0].fabric[3] = mask
    told = collector.at(0)
    found = {key[1] for key in told.samples if key[0] == "fabric_degraded"}
    assert (found, told.samples["fabric_ready",], told.failures) == (faults, 1, {})
    assert all(told.samples["fabric_degraded", fault] == 1 for fault in faults)
    fake.gpus[0].fabric[3] = 0x2
    assert not [key for key in collector.at(SLOW_SECONDS).samples if key[0] == "fabric_degraded"]


def test_a_mask_without_registration_says_nothing(fake: Any, one_gpu: OneGpu) -> None:
    """While a GPU has not joined, that is what is wrong."""
    fake.gpus[0].fabric[0], fake.gpus[0].fabric[3] = 2, 0x1
    samples = one_gpu().at(0).samples
    assert samples["fabric_ready",] == 0
    assert not [key for key in samples if key[0] == "fabric_degraded"]


@pytest.mark.parametrize(
    ("name", "ready"),
    [
        (b"NVIDIA GB200", 0),
        (b"NVIDIA GB300", 0),
        (b"NVIDIA GB10", None),
        (b"NVIDIA B200", None),
        (b"NVIDIA H100", None),
    ],
)
@pytest.mark.parametrize("how", ["state", "error"])
def test_a_part_that_is_built_into_a_fabric_has_one(
    fake: Any, one_gpu: OneGpu, name: bytes, ready: int | None, how: str
) -> None:
    """That there is none is a fault on a GB200 or GB300, and on any other part it is not."""
    fake.gpus[0].name = name
    fake.gpus[0].fabric[0] = 0
    if how == "error":
        fake.fail("fabric", NOT_SUPPORTED, 0)
    told = one_gpu().at(0)
    assert (told.samples.get(("fabric_ready",)), told.failures) == (ready, {})


@pytest.mark.parametrize(("state", "status"), [(4, 0), (77, 0), (2**32 - 1, 0), (3, 2**32 - 1), (3, 77)])
def test_a_state_of_the_fabric_that_there_is_not(fake: Any, one_gpu: OneGpu, state: int, status: int) -> None:
    """It says nothing about the fabric, and the reading failed."""
    fake.gpus[0].fabric[0], fake.gpus[0].fabric[1] = state, status
    told = one_gpu().at(0)
    assert ("fabric_ready",) not in told.samples
    assert list(told.failures) == [f"tachograph_gpu_fabric_{name} of GPU 0" for name in ("ready", "degraded")]
