"""DCGM's names: what is made for dcgm-exporter finds what it asks for, in its units and with its labels."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tachograph.catalog import index as catalog
from tachograph.catalog.index import gpu_metrics
from tachograph.node.exposition import OPENMETRICS, TEXT, render
from tachograph.node.gpu.dcgm import LABELS, dcgm_samples
from tachograph.node.samples import Sample

GPU = ("0", "GPU-aaaa")
INFO = Sample(catalog.GPU_INFO, (*GPU, "NVIDIA H100", "00000000:3B:00.0", "165", "96", "580.95.05", "13.0"), 1)
OF_GPU = ("0", "GPU-aaaa", "00000000:3B:00.0", "nvidia0", "NVIDIA H100", socket.gethostname(), "580.95.05")
READINGS = (
    INFO,
    Sample(catalog.GPU_UTILIZATION, GPU, 0.57),
    Sample(catalog.GPU_TEMPERATURE, (*GPU, "gpu"), 61.0),
    Sample(catalog.GPU_TEMPERATURE, (*GPU, "memory"), 70.0),
    Sample(catalog.GPU_POWER, GPU, 655.25),
    Sample(catalog.GPU_ENERGY, GPU, 123456.789),
    Sample(catalog.GPU_CLOCK, (*GPU, "sm"), 1980e6),
    Sample(catalog.GPU_MEMORY_USED, GPU, 72.5 * 2**30),
    Sample(catalog.GPU_MEMORY_FREE, GPU, 0.0),
    Sample(catalog.GPU_TENSOR_ACTIVE, GPU, 0.5),
    Sample(catalog.GPU_ENGINE_ACTIVE, GPU, 0.75),
    Sample(catalog.GPU_PCIE_REPLAYS, GPU, 3),
    Sample(catalog.GPU_ROW_REMAP_FAILED, GPU, 0),
    Sample(catalog.GPU_ECC_ERRORS, (*GPU, "corrected", "volatile"), 9),
    Sample(catalog.GPU_XID_ERRORS, (*GPU, "79"), 0),
)

DASHBOARD = (
    ("GPU Temperature", "DCGM_FI_DEV_GPU_TEMP", 61.0),
    ("GPU Avg. Temp", "DCGM_FI_DEV_GPU_TEMP", 61.0),
    ("GPU Power Usage", "DCGM_FI_DEV_POWER_USAGE", 655.25),
    ("GPU Power Total", "DCGM_FI_DEV_POWER_USAGE", 655.25),
    ("GPU SM Clocks", "DCGM_FI_DEV_SM_CLOCK", 1980.0),
    ("GPU Utilization", "DCGM_FI_DEV_GPU_UTIL", 57.0),
    ("GPU Utilization, its later form", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.75),
    ("GPU Framebuffer Mem Used", "DCGM_FI_DEV_FB_USED", 74240.0),
    ("Tensor Core Utilization", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.5),
)
"""The panels of dashboard 12239: what each reads, and what it has to find here. Its variables are instance and gpu."""


def values(samples: Iterable[Sample]) -> dict[str, float]:
    return {sample.metric.name: sample.value for sample in samples}


@pytest.mark.parametrize(("panel", "field", "value"), DASHBOARD, ids=[panel for panel, _, _ in DASHBOARD])
def test_dashboard_12239(panel: str, field: str, value: float) -> None:
    """Each of its panels finds its field, in DCGM's unit and exactly, with the labels it filters and groups by."""
    (sample,) = (sample for sample in dcgm_samples(READINGS) if sample.metric.name == field)
    assert sample.value == value
    assert dict(zip(sample.metric.labels, sample.labels, strict=True)) == dict(zip(LABELS, OF_GPU, strict=True))


def test_zero_is_shown_and_absent_is_not() -> None:
    """A reading of 0 is 0, what was not read is not there, and what is no part of the default set stays away."""
    found = values(dcgm_samples(READINGS))
    assert found["DCGM_FI_DEV_FB_FREE"] == 0
    assert found["DCGM_FI_DEV_ROW_REMAP_FAILURE"] == 0
    assert "DCGM_FI_DEV_MEM_CLOCK" not in found
    assert "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL" not in found


def test_default_set() -> None:
    """Of what can be read, exactly dcgm-exporter's default set is shown, with its types and a help of its own."""
    row = {metric.name: metric for metric in gpu_metrics()}
    every = [INFO] + [
        Sample(row[metric.name], (*GPU, *twin.labels), 1.0) for metric in gpu_metrics() for twin in metric.dcgm
    ]
    shown = {sample.metric.name: sample.metric for sample in dcgm_samples([*every, READINGS[-1]])}
    default = {twin.field for metric in gpu_metrics() for twin in metric.dcgm if twin.default}
    assert shown.keys() == default | {"DCGM_FI_DEV_XID_ERRORS"}
    assert {name for name, metric in shown.items() if metric.kind == catalog.COUNTER} == {
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    }  # fmt: skip
    assert len({metric.help for metric in shown.values()}) == len(shown)
    assert "in MiB" in shown["DCGM_FI_DEV_FB_USED"].help


def xid(*samples: Sample) -> tuple[float, str, str]:
    (found,) = (s for s in dcgm_samples([INFO, *samples]) if s.metric.name == "DCGM_FI_DEV_XID_ERRORS")
    return found.value, *found.labels[-2:]  # type: ignore[return-value]


def test_last_xid() -> None:
    """The field holds the number of the latest Xid, whatever its number; 0 before the first; nothing if none count."""
    none = Sample(catalog.GPU_XID_ERRORS, (*GPU, "79"), 0)
    assert xid(none) == (0, "0", "")
    older = Sample(catalog.GPU_XID_TIMESTAMP, (*GPU, "79"), 1000.0)
    newer = Sample(catalog.GPU_XID_TIMESTAMP, (*GPU, "31"), 1000.5)
    meaning = Sample(catalog.GPU_XID_INFO, (*GPU, "31", "application", "bad address"), 1)
    assert xid(newer, none, older, meaning) == (31, "31", "bad address")
    assert "DCGM_FI_DEV_XID_ERRORS" not in values(dcgm_samples(READINGS[:-1]))


def test_a_gpu_that_was_never_opened_has_no_name() -> None:
    """Without the facts that DCGM's labels are made of there is no series, rather than one that says nothing."""
    assert list(dcgm_samples(READINGS[1:])) == []


def test_both_parsers_read_it() -> None:
    """The page stays readable in both formats; a counter without `_total` is of unknown type to OpenMetrics."""
    samples = [*READINGS, *dcgm_samples(READINGS)]

    def found(families: Any) -> set[tuple[str, float]]:
        # prometheus_client gives a counter the suffix it lacks; Prometheus itself takes names as they are.
        return {(sample.name.removesuffix("_total"), sample.value) for family in families for sample in family.samples}

    text, openmetrics = (render(samples, form).decode() for form in (TEXT, OPENMETRICS))
    assert "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter" in text
    assert "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER unknown" in openmetrics
    assert found(parse_text(text)) == found(parse_openmetrics(openmetrics))
