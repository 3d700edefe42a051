"""GPM on the made-up library: how busy the parts of a GPU are, between two collections and since its reboot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tachograph.node.driver.nvml import GpuIsLost, InvalidArgument, NotSupported, NvmlFailure
from tachograph.node.gpu.gpm import GpmWindow
from tachograph.node.gpu.reading_table import ACTIVITIES, RETRY_SECONDS

NOT_SUPPORTED, NO_PERMISSION, INVALID_ARGUMENT, TIMEOUT, LOST = 3, 4, 2, 10, 15
OneGpu = Callable[..., Any]
ACTIVITY = {activity.value.metric.name.removeprefix("tachograph_gpu_") for activity in ACTIVITIES}


def _activity(told: Any) -> dict[tuple[str, ...], float]:
    return {key: value for key, value in told.samples.items() if key[0] in ACTIVITY}


def test_every_number_arrives_in_base_units(fake: Any, one_gpu: OneGpu) -> None:
    """Percent become ratios, MiB/s become bytes per second, cycles stay; no two ids are swapped."""
    sampled = {1: 91.0, 2: 92.0, 3: 33.0, 4: 14.0, 5: 45.0, 10: 51.0, 11: 1.0, 12: 2.0, 13: 3.0}
    rates = {20: 1.0, 21: 2.0, 60: 3.0, 61: 4.0}
    counted = {248: 9e15, 249: 8e15, 250: 7e15, 257: 6e15, 258: 5e15, 259: 4e15, 260: 3e15}
    for metric, value in (sampled | rates | counted).items():
        fake.gpm(5, metric, value)
    assert _activity(one_gpu(5).at(0, 1)) == pytest.approx({
        ("engine_active_ratio",): 0.91,
        ("sm_active_ratio",): 0.92,
        ("sm_occupancy_ratio",): 0.33,
        ("tensor_active_ratio",): 0.45,
        ("dram_active_ratio",): 0.51,
        ("pipe_active_ratio", "integer"): 0.14,
        ("pipe_active_ratio", "fp64"): 0.01,
        ("pipe_active_ratio", "fp32"): 0.02,
        ("pipe_active_ratio", "fp16"): 0.03,
        ("pcie_rate_bytes_per_second", "transmit"): 1048576,
        ("pcie_rate_bytes_per_second", "receive"): 2097152,
        ("nvlink_rate_bytes_per_second", "receive"): 3145728,
        ("nvlink_rate_bytes_per_second", "transmit"): 4194304,
        ("sm_cycles_total",): 9e15,
        ("sm_active_cycles_total",): 8e15,
        ("tensor_active_cycles_total",): 7e15,
        ("pipe_active_cycles_total", "integer"): 6e15,
        ("pipe_active_cycles_total", "fp64"): 5e15,
        ("pipe_active_cycles_total", "fp32"): 4e15,
        ("pipe_active_cycles_total", "fp16"): 3e15,
    })  # fmt: skip


def test_the_first_collection_has_nothing_to_compare_with(fake: Any, one_gpu: OneGpu) -> None:
    """One sample tells nothing: activity is there from the second collection on, and is no failure before."""
    collector = one_gpu()
    first = collector.at(0)
    assert (_activity(first), first.failures, first.gpm) == ({}, {}, "")
    assert {key[0] for key in _activity(collector.at(1))} == ACTIVITY
    assert fake.called("gpm_support") == 1


def test_what_gpm_did_not_measure_is_absent(fake: Any, one_gpu: OneGpu) -> None:
    """NaN is no sample, zero is one; infinity and a number below zero are no samples, and readings that failed."""
    for metric, value in {2: math.nan, 5: math.inf, 10: -1.0, 12: 0.0, 248: math.nan, 249: -math.inf}.items():
        fake.gpm(0, metric, value)
    told = one_gpu().at(0, 1)
    failed = {"tensor_active_ratio", "dram_active_ratio", "sm_active_cycles_total"}
    absent = {"sm_active_ratio", "sm_cycles_total", *failed}
    assert not absent & {key[0] for key in told.samples}
    assert told.samples["pipe_active_ratio", "fp32"] == 0
    assert (set(told.failures), told.gpm) == ({f"tachograph_gpu_{name} of GPU 0" for name in failed}, "")


@pytest.mark.parametrize("code", [NOT_SUPPORTED, INVALID_ARGUMENT, NO_PERMISSION])
def test_a_metric_the_driver_does_not_have_is_absent(fake: Any, one_gpu: OneGpu, code: int) -> None:
    """Older drivers lack the cycle counters: these are absent, the ratios are there, and nothing has failed."""
    for metric in range(248, 261):
        fake.gpm_error(0, metric, code)
    told = one_gpu().at(0, 1)
    assert {key[0] for key in _activity(told) if key[0].endswith("_total")} == set()
    assert {("sm_active_ratio",), ("tensor_active_ratio",)} <= told.shown
    assert (told.failures, told.gpm) == ({}, "")


def test_a_metric_that_fails_is_told(fake: Any, one_gpu: OneGpu) -> None:
    """A metric that fails for another reason is absent and counts as a failed reading; the others are read."""
    fake.gpm_error(0, 10, TIMEOUT)
    told = one_gpu().at(0, 1)
    assert list(told.failures) == ["tachograph_gpu_dram_active_ratio of GPU 0"]
    assert ("dram_active_ratio",) not in told.samples
    assert ("sm_active_ratio",) in told.samples


def test_a_gpu_before_hopper_has_no_gpm_and_says_so(fake: Any, one_gpu: OneGpu) -> None:
    """No sample, no failure, a word and a sentence; asked again after ten minutes and not before."""
    fake.gpus[1].gpm = 0
    collector = one_gpu(1)
    told = collector.at(0, 1, 2, 599)
    assert (_activity(told), told.failures, told.gpm) == ({}, {}, "not_supported")
    assert "Hopper" in told.gpm_reason
    assert fake.called("gpm_support", 1) == 1
    fake.gpus[1].gpm = 1
    told = collector.at(RETRY_SECONDS, RETRY_SECONDS + 1)
    assert {key[0] for key in _activity(told)} == ACTIVITY
    assert (told.gpm, told.gpm_reason) == ("", "")


@pytest.mark.parametrize(
    ("call", "code", "word"),
    [("gpm_sample", NO_PERMISSION, "no_permission"), ("gpm_support", NOT_SUPPORTED, "not_supported"),
     ("gpm_sample", TIMEOUT, "error"), ("gpm_metrics", TIMEOUT, "error")],
)  # fmt: skip
def test_gpm_that_cannot_be_read_costs_gpm_alone(fake: Any, one_gpu: OneGpu, call: str, code: int, word: str) -> None:
    """Why there is no activity is one word and a sentence; everything else of the GPU is read."""
    fake.fail(call, code)
    collector = one_gpu()
    told = collector.at(0, 1)
    assert (told.down, _activity(told), told.gpm) == ("", {}, word)
    assert told.gpm_reason.startswith("no GPM: ")
    assert ("power_watts",) in told.samples
    fake.fail(call, 0)
    told = collector.at(RETRY_SECONDS + 1, RETRY_SECONDS + 2)
    assert {key[0] for key in _activity(told)} == ACTIVITY, "back with the cycle counters, which did not fail it"
    assert told.gpm == ""


def test_a_transient_error_is_tried_again_at_once(fake: Any, one_gpu: OneGpu) -> None:
    """A metric that is neither unsupported nor forbidden is tried again a second later."""
    collector = one_gpu()
    collector.at(0)
    fake.fail("gpm_sample", TIMEOUT)
    assert collector.at(1).gpm == "error"
    fake.fail("gpm_sample", 0)
    assert {key[0] for key in _activity(collector.at(2))} == ACTIVITY


def test_a_counter_that_falls_is_a_reset(fake: Any, one_gpu: OneGpu) -> None:
    """After a reboot of the GPU its cycles start again, and are shown as they are once the next reading agrees."""
    collector = one_gpu()
    fake.gpm(0, 249, 5e15)
    collector.at(0, 1)
    fake.gpm(0, 249, 1e9)
    assert ("sm_active_cycles_total",) not in collector.at(2).samples
    assert collector.at(3).samples["sm_active_cycles_total",] == 1e9


def test_a_gpu_lost_while_it_is_sampled_is_lost(fake: Any, one_gpu: OneGpu) -> None:
    """GPM notices first that a part has left the bus: that takes the GPU down, not GPM."""
    collector = one_gpu()
    collector.at(0)
    fake.fail("gpm_sample", LOST)
    assert collector.at(1).down == "lost"


class _OldDriver:
    """An Nvml and Gpu whose driver refuses a list with ids that it does not know, and counts the samples it lends."""

    def __init__(self, refusal: type[NvmlFailure]) -> None:
        self.refusal = refusal
        self.lent = 0
        self.asked: list[int] = []

    def gpm_sample(self) -> object:
        self.lent += 1
        return object()

    def free_gpm_sample(self, sample: object) -> None:
        self.lent -= 1

    def sample_gpm(self, sample: object, gpu_instance: int | None) -> None:
        pass

    def gpm_query(self, ids: Sequence[int]) -> Sequence[int]:
        return ids

    def gpm_values(self, ids: Sequence[int], before: object, after: object) -> list[float]:
        assert before is not after
        self.asked.append(len(ids))
        if max(ids) > 209:  # NVML_GPM_METRIC_MAX of driver 580 is 210
            raise self.refusal("made up")
        return [50.0] * len(ids)


@pytest.mark.parametrize("refusal", [InvalidArgument, NotSupported])
def test_a_driver_that_refuses_the_whole_list_is_asked_for_what_it_knows(refusal: type[NvmlFailure]) -> None:
    """Ids that came later must not cost the ratios; they are tried again after ten minutes."""
    driver: Any = _OldDriver(refusal)
    window = GpmWindow(driver, driver, ACTIVITIES)
    few = sum(not activity.counted for activity in ACTIVITIES)
    assert window.read(0, {}) == []
    for now in (1, 2, 3, RETRY_SECONDS + 1):
        assert len(window.read(now, {})) == few
    assert driver.asked == [len(ACTIVITIES), few, few, few, len(ACTIVITIES), few]


def test_two_samples_are_lent_and_given_back(fake: Any) -> None:
    """However long it runs, a window holds two samples, and none once it is closed, also after a failure."""
    driver: Any = _OldDriver(InvalidArgument)
    window = GpmWindow(driver, driver, ACTIVITIES)
    for now in range(50):
        window.read(now, {})
    assert driver.lent == 2

    def lose(sample: object, gpu_instance: int | None) -> None:
        raise GpuIsLost("made up")

    driver.sample_gpm = lose
    with pytest.raises(GpuIsLost):
        window.read(50, {})
    window.close()
    window.close()
    assert driver.lent == 0
