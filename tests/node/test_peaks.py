"""The peak of a device is found by its whole name, or not at all."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tachograph.node.peaks import DTYPES, MEASURED, PEAKS, achievable_of, dtype_of, peaks_of
from tests.every import every

# NVML product name -> dense tera-FLOP/s as (fp16, bf16, fp8); None where the device has no such unit.
KNOWN: dict[str, tuple[float | None, ...]] = {
    "Tesla V100-SXM2-16GB": (125, None, None),
    "Tesla V100-SXM2-32GB": (125, None, None),
    "Tesla V100-PCIE-16GB": (112, None, None),
    "Tesla V100-PCIE-32GB": (112, None, None),
    "Tesla V100S-PCIE-32GB": (130, None, None),
    "Tesla T4": (65, None, None),
    "NVIDIA A10": (125, 125, None),
    "NVIDIA A40": (149.7, 149.7, None),
    "A100-SXM4-40GB": (312, 312, None),
    "NVIDIA A100-SXM4-40GB": (312, 312, None),
    "NVIDIA A100-SXM4-80GB": (312, 312, None),
    "NVIDIA A100-SXM-80GB": (312, 312, None),
    "NVIDIA A100-PCIE-40GB": (312, 312, None),
    "NVIDIA A100 80GB PCIe": (312, 312, None),
    "NVIDIA A800-SXM4-80GB": (312, 312, None),
    "NVIDIA RTX A6000": (154.85, 154.85, None),
    "NVIDIA GeForce RTX 3090": (71, 71, None),
    "NVIDIA GeForce RTX 4090": (165.2, 165.2, 330.3),
    "NVIDIA L4": (121, 121, 242),
    "NVIDIA L40": (181.05, 181.05, 362),
    "NVIDIA L40S": (362.05, 362.05, 733),
    "NVIDIA H20": (148, 148, 296),
    "NVIDIA H20-3e": (148, 148, 296),
    "NVIDIA H800": (989, 989, 1979),
    "NVIDIA H100 80GB HBM3": (989, 989, 1979),
    "NVIDIA H100 PCIe": (756, 756, 1513),
    "NVIDIA H100 NVL": (835, 835, 1671),
    "NVIDIA H200": (989, 989, 1979),
    "NVIDIA H200 NVL": (835, 835, 1671),
    "NVIDIA GH200 480GB": (989, 989, 1979),
    "NVIDIA GH200 144G HBM3e": (989, 989, 1979),
    "NVIDIA B200": (2250, 2250, 4500),
    "NVIDIA B300 SXM6 AC": (2250, 2250, 4500),
    "NVIDIA GB200": (2500, 2500, 5000),
    "NVIDIA GB300": (2500, 2500, 5000),
}
UNKNOWN = (
    "",
    "NVIDIA",
    "NVIDIA H100",  # which board?
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    "NVIDIA A100-SXM-64GB",  # made for one customer, with more cores
    "NVIDIA A10G",  # no A10, and what is written of it differs by a factor of two
    "NVIDIA A100X",
    "NVIDIA A30",
    "NVIDIA A16",
    "NVIDIA L20",
    "NVIDIA L40G",
    "NVIDIA H20Z",
    "NVIDIA H200\nNVL",
    "NVIDIA L4000",
    "NVIDIA H2000",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA RTX 6000 Ada Generation",
    "Quadro RTX 6000",
    "NVIDIA H1000 SXM",
    "GRID A100-10C",
    # What NVML never names: other makers' devices have no row until something reads them.
    "AMD Instinct MI250X",
    "AMD Instinct MI300X",
    "AMD Instinct MI325X",
    "AMD Instinct MI350X",
    "AMD Instinct MI355X",
    "TPU v4",
    "TPU v5e",
    "TPU v5p",
    "TPU v6e",
    "Trainium2",
)
# NVML product name -> measured tera-FLOP/s as (bf16, fp8).
MEASURED_ON: dict[str, tuple[float, float | None]] = {
    "NVIDIA A100-SXM4-40GB": (271.2, None),
    "NVIDIA A100-SXM4-80GB": (271.2, None),
    "NVIDIA A100 80GB PCIe": (252.9, None),
    "NVIDIA A100-PCIE-40GB": (252.9, None),
    "NVIDIA H100 80GB HBM3": (794.5, 1402.6),
    "NVIDIA H200": (794.5, 1453.4),
    "NVIDIA GH200 144G HBM3e": (828.6, 1535),
    "NVIDIA B200": (1745, 3432.5),
    "NVIDIA B300 SXM6 AC": (1769, None),
    "NVIDIA GB200": (1822, None),
}


@every("name", KNOWN)
def test_a_known_device_has_its_own_peak(name: str) -> None:
    """Every device string gives the dense figure of that board, and of no other."""
    expected = dict(zip(DTYPES, KNOWN[name], strict=True))
    assert peaks_of(name) == {dtype: tera * 1e12 for dtype, tera in expected.items() if tera is not None}
    assert peaks_of(name.upper()) == peaks_of(name.lower()) == peaks_of(name)


@every("name", UNKNOWN)
def test_an_unknown_device_has_no_peak(name: str) -> None:
    """No peak means no MFU, where another board's peak would mean a wrong one."""
    assert peaks_of(name) == {}


@every("name", MEASURED_ON)
def test_a_measured_device_has_its_own_figure(name: str) -> None:
    """A measured figure is below the vendor's peak of the same device, at a plausible share of it."""
    bf16, fp8 = MEASURED_ON[name]
    expected = {"bf16": bf16 * 1e12} | ({} if fp8 is None else {"fp8": fp8 * 1e12})
    assert achievable_of(name) == achievable_of(name.upper()) == expected
    assert all(0.65 < flops / peaks_of(name)[dtype] < 0.9 for dtype, flops in expected.items())


@every("name", [*UNKNOWN, *sorted(KNOWN.keys() - MEASURED_ON.keys() - {"NVIDIA A100-SXM-80GB", "A100-SXM4-40GB"})])
def test_a_device_that_nobody_measured_has_no_figure(name: str) -> None:
    """A sibling's measurement is not its own: not the A100's for the A800, nor the H200's for the H20."""
    assert achievable_of(name) == {}


@pytest.mark.parametrize(("table", "names"), [(PEAKS, KNOWN), (MEASURED, MEASURED_ON)])
def test_every_row_is_reached_by_exactly_the_names_it_is_for(table: Any, names: Any) -> None:
    """No row is dead, and no name matches two."""
    reached = set()
    for name in names:
        model = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
        rows = [row.name for row in table if re.fullmatch(row.name, model, re.IGNORECASE)]
        assert len(rows) == 1, name
        reached.update(rows)
    assert reached == {row.name for row in table}
    assert all(row.source for row in table)


PUBLISHED = (
    "V100-SXM2 V100-PCIE V100S T4 A10 A100-SXM4 A100-PCIE A6000 3090 4090 L4 L40S H20 H800 H100-SXM H100-PCIe H100-NVL "
    "H200 GH200 B200 B300 GB200 GB300"
)


def test_every_published_device_is_known_or_refused_by_name() -> None:
    """Each device of the survey of peak tables is entered, under the name that NVML gives it, or is no NVML device."""
    found = {
        device: [name for name in KNOWN if re.search(pattern, name)]
        for device, pattern in (
            (device, {"H100-SXM": r"H100 80GB HBM3", "H100-PCIe": r"H100 PCIe", "H100-NVL": r"H100 NVL"}.get(
                device, rf"(^|[ -]){device}($|[- ])"
            ))
            for device in PUBLISHED.split()
        )
    }  # fmt: skip
    assert not [device for device, names in found.items() if not names]
    assert "NVIDIA A10G" in UNKNOWN  # written of as 70 and as 125: no figure is better than either


@every("name", MEASURED_ON)
def test_no_measurement_is_used_for_fp16(name: str) -> None:
    """That of bf16 is not its own, though both have one peak: a run in fp16 has no achievable FLOP/s."""
    for written in ("fp16", "FP16", "float16", "torch.float16", "half", "16-mixed"):
        assert dtype_of(written) == "fp16"
        assert achievable_of(name).get(dtype_of(written)) is None
    for written in ("bf16", "bfloat16", "torch.bfloat16", "bf16-mixed"):
        assert achievable_of(name).get(dtype_of(written)) is not None


def test_a_row_states_dense_figures() -> None:
    """Eight bits run at twice the rate of sixteen; a figure with sparsity beside a dense one shows here."""
    for row in PEAKS:
        assert row.bf16 in (None, row.fp16)
        assert row.fp8 is None or row.fp8 / row.fp16 == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("written", "dtype"),
    [("bf16", "bf16"), ("BF16", "bf16"), ("torch.bfloat16", "bf16"), ("16-mixed", "fp16"), ("float32", "float32")],
)
def test_a_precision_is_known_by_its_common_names(written: str, dtype: str) -> None:
    """PyTorch's, Lightning's and people's words for a precision mean the same row; an unknown one means none."""
    assert dtype_of(written) == dtype
