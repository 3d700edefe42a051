"""What is shown of a GPU with `--gpu.series=few`: what alerts and their texts need, nothing that is as it should be."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tachograph.catalog import index as catalog
from tachograph.catalog.metric import Metric
from tachograph.node.clock import Clock
from tachograph.node.config import read_config
from tachograph.node.samples import GpuSnapshot, Sample
from tachograph.node.shown_gpus import NoGpus, ShownGpus
from tests.catalog.rows import every_row

Own = tuple[Metric, tuple[str, ...]]
"""A metric with its label values after gpu and uuid."""

HEALTHY: Mapping[Own, float] = {
    (catalog.GPU_UP, ()): 1,
    (catalog.GPU_TEMPERATURE, ("gpu",)): 60,
    (catalog.GPU_POWER, ()): 600,
    (catalog.GPU_ENERGY, ()): 1e9,
    (catalog.GPU_NVLINK_LINKS, ()): 18,
    (catalog.GPU_NVLINK_LINKS_ACTIVE, ()): 18,
    (catalog.GPU_NVLINK_ERRORS, ("replay",)): 0,
    (catalog.GPU_PCIE_WIDTH, ()): 16,
    (catalog.GPU_PCIE_WIDTH_MAX, ()): 16,
    (catalog.GPU_PCIE_GENERATION, ()): 5,
    (catalog.GPU_PCIE_GENERATION_MAX, ()): 5,
    (catalog.GPU_CLOCK_EVENT, ("sw_power_cap",)): 0,
    (catalog.GPU_ECC_ERRORS, ("corrected", "volatile")): 0,
    (catalog.GPU_ECC_ERRORS, ("uncorrected", "volatile")): 0,
    (catalog.GPU_ROW_REMAP_PENDING, ()): 0,
    (catalog.GPU_ROW_REMAP_FAILED, ()): 0,
    (catalog.GPU_SRAM_THRESHOLD, ()): 0,
    (catalog.GPU_RETIREMENT_PENDING, ()): 0,
    (catalog.GPU_FABRIC_READY, ()): 1,
    (catalog.GPU_RECOVERY_ACTION, ("none",)): 1,
}
KERNEL_EVENTS = Sample(catalog.NODE_KERNEL_EVENTS, ("nfs",), 0)
"""What a collection finds of the node is no GPU's."""
ALWAYS = {
    (catalog.GPU_UP, ()),
    (catalog.GPU_TEMPERATURE, ("gpu",)),
    (catalog.GPU_ENERGY, ()),
    (catalog.GPU_NVLINK_LINKS_ACTIVE, ()),
}


def page(amiss: Mapping[Own, float | None], level: str = "few") -> dict[Own, float]:
    """Return what is shown of a GPU after three minutes with these readings, healthy until then."""
    now = 0.0
    readings: dict[Own, float | None] = dict(HEALTHY)

    class Driver(NoGpus):
        def snapshot(self) -> GpuSnapshot:
            own = ((key, value) for key, value in readings.items() if value is not None)
            samples = (Sample(metric, ("0", "GPU-a", *labels), value) for (metric, labels), value in own)
            return GpuSnapshot((*samples, KERNEL_EVENTS), 0.01, now, True, "")

    flags = ("--socket=/nowhere/rank.sock", f"--gpu.series={level}")
    shown = ShownGpus(read_config(flags, {}), Driver(), Clock(lambda: now, lambda: now))
    shown.look()
    readings |= amiss
    for _ in range(36):
        now += 5
        shown.look()
    assert KERNEL_EVENTS in shown.samples()
    samples = (sample for sample in shown.samples() if sample.labels[:2] == ("0", "GPU-a"))
    return {(sample.metric, sample.labels[2:]): sample.value for sample in samples}


def test_of_a_healthy_gpu_a_few_readings_are_shown() -> None:
    """A zero that says that all is well is not shown, unless dashboards shall have it."""
    assert page({}).keys() == ALWAYS
    assert page({}, "dashboards").keys() > ALWAYS | {(catalog.GPU_ROW_REMAP_PENDING, ()), (catalog.GPU_POWER, ())}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ((catalog.GPU_CLOCK_EVENT, ("sw_power_cap",)), 1),
        ((catalog.GPU_ECC_ERRORS, ("corrected", "volatile")), 3),
        ((catalog.GPU_ECC_ERRORS, ("uncorrected", "volatile")), 1),
        ((catalog.GPU_ROW_REMAP_PENDING, ()), 1),
        ((catalog.GPU_ROW_REMAP_FAILED, ()), 1),
        ((catalog.GPU_SRAM_THRESHOLD, ()), 1),
        ((catalog.GPU_RETIREMENT_PENDING, ()), 1),
        ((catalog.GPU_FABRIC_READY, ()), 0),
    ],
)
def test_what_is_amiss_is_shown(key: Own, value: float) -> None:
    """As soon as a reading is not what it should be, it is there."""
    found = page({key: value})
    assert {each: found[each] for each in found.keys() - ALWAYS if each[0] is not catalog.GPU_SLOWDOWN} == {key: value}


def test_an_action_that_the_driver_asks_for_is_shown() -> None:
    """None is not."""
    asked = (catalog.GPU_RECOVERY_ACTION, ("gpu_reset",))
    assert page({(catalog.GPU_RECOVERY_ACTION, ("none",)): None, asked: 1}).keys() == ALWAYS | {asked}


def test_of_a_faulty_link_all_is_shown_that_its_alert_tells() -> None:
    """How many links there are, and lanes and generations, of the GPU of which the node finds fault with them."""
    links = page({(catalog.GPU_NVLINK_LINKS_ACTIVE, ()): 16})
    assert links.keys() - ALWAYS == {(catalog.GPU_NVLINKS_DOWN, ()), (catalog.GPU_NVLINK_LINKS, ())}
    lanes = page({(catalog.GPU_PCIE_WIDTH, ()): 8})
    of_pcie = {key for key in HEALTHY if key[0].name.startswith("tachograph_gpu_pcie")}
    assert lanes.keys() - ALWAYS == of_pcie | {(catalog.GPU_PCIE_SPEED, ())}


def test_power_is_shown_where_energy_is_not_counted() -> None:
    """Rules take power from energy; an older GPU has only the reading."""
    assert page({(catalog.GPU_ENERGY, ()): None}).keys() == ALWAYS - {(catalog.GPU_ENERGY, ())} | {
        (catalog.GPU_POWER, ())
    }


@every_row
def test_only_what_few_shows_is_left_out_when_normal(metric: Metric) -> None:
    """A row has no `normal` without `few`."""
    assert metric.normal is None or metric.few
