"""Peak FLOP/s of known devices: dense, as published by the vendor, and the highest publicly measured ones.

A name must match a row as a whole: "H20" is not found in "H200", nor "A10" in "A100", and a MIG slice, a board made
for one customer or a device that is not in the table has no peak. No peak means no MFU, never a wrong one.

A power limit below the default changes nothing here: the peak is the device's, and what the cap costs is to show in
MFU and in `gpu_clock_event_seconds_total`. A variant that is sold with less power has its own name and its own row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar


@dataclass(frozen=True)
class Peak:
    """Tera-FLOP/s of one device: matrix units, accumulating in 32 bits; None where there is no such unit."""

    name: str
    fp16: float
    bf16: float | None
    fp8: float | None
    source: str


@dataclass(frozen=True)
class Measured:
    """Tera-FLOP/s of the fastest matrix multiplication that was publicly measured on one device; None: not measured."""

    name: str
    bf16: float | None
    fp8: float | None
    source: str


_H100 = "nvidia.com/data-center/h100: figures with sparsity, halved"
_A100 = "A100 datasheet (nvidia-a100-datasheet-us-nvidia-1758950)"
_BLACKWELL = "Blackwell datasheet (nvdam.widen.net/s/wwnsxrhm2w): figures with sparsity, halved"
_BOOK = "github.com/stas00/ml-engineering, compute/accelerator"
_V100 = "V100 datasheet"

# `name` is a regular expression on NVML's product name without its maker, compared as a whole, ignoring case.
PEAKS: tuple[Peak, ...] = (
    Peak(r"V100-SXM2-(16|32)GB", 125, None, None, _V100),
    Peak(r"V100-PCIE-(16|32)GB", 112, None, None, _V100),
    Peak(r"V100S-PCIE-32GB", 130, None, None, _V100),
    Peak(r"T4", 65, None, None, "T4 datasheet"),
    Peak(r"A10", 125, 125, None, "A10 datasheet"),
    Peak(r"A40", 149.7, 149.7, None, "A40 datasheet"),
    Peak(r"(A100|A800)-(SXM4|SXM|PCIE)-(40|80)GB", 312, 312, None, _A100),
    Peak(r"(A100|A800) 80GB PCIe", 312, 312, None, _A100),
    Peak(r"RTX A6000", 154.85, 154.85, None, "RTX A6000 datasheet: 309.7 with sparsity, halved"),
    Peak(r"GeForce RTX 3090", 71, 71, None, "GA102 whitepaper, appendix A"),
    Peak(r"GeForce RTX 4090", 165.2, 165.2, 330.3, "Ada whitepaper, appendix A"),
    Peak(r"L4", 121, 121, 242, "L4 datasheet: figures with sparsity, halved"),
    Peak(r"L40", 181.05, 181.05, 362, "L40 datasheet"),
    Peak(r"L40S", 362.05, 362.05, 733, "L40S datasheet"),
    Peak(r"H20(-3e)?", 148, 148, 296, "github.com/pytorch/torchtitan, tools/utils.py"),
    Peak(r"H100 80GB HBM3", 989, 989, 1979, _H100 + "; what the SXM board calls itself"),
    Peak(r"H800", 989, 989, 1979, "H800 datasheet: figures with sparsity, halved"),
    Peak(r"H100 PCIe", 756, 756, 1513, _H100),
    Peak(r"H100 NVL", 835, 835, 1671, _H100),
    Peak(r"H200", 989, 989, 1979, "nvidia.com/data-center/h200: figures with sparsity, halved"),
    Peak(r"H200 NVL", 835, 835, 1671, "nvidia.com/data-center/h200: figures with sparsity, halved"),
    Peak(r"GH200 [0-9]+GB?( HBM3e?)?", 989, 989, 1979, _BOOK),
    Peak(r"B200", 2250, 2250, 4500, _BLACKWELL),
    Peak(r"B300( SXM6)?( AC)?", 2250, 2250, 4500, _BOOK),
    Peak(r"GB[23]00", 2500, 2500, 5000, _BOOK),
)
DTYPES = ("fp16", "bf16", "fp8")

# Means over 100 runs of the best shape that a search found, so they move with library versions. A figure counts for the
# boards its source names and no sibling: neither A800 nor the GH200 with 96 GB has one.
_MAMF = "github.com/stas00/ml-engineering, compute/accelerator: maximum achievable matmul FLOPS"
_MAMF_H200 = "github.com/stas00/ml-engineering, insights/when-to-upgrade-gpus: in bf16 one figure for H100 and H200"
MEASURED: tuple[Measured, ...] = (
    Measured(r"A100-(SXM4|SXM)-(40|80)GB", 271.2, None, _MAMF),
    Measured(r"A100-PCIE-(40|80)GB|A100 80GB PCIe", 252.9, None, _MAMF),
    Measured(r"H100 80GB HBM3", 794.5, 1402.6, _MAMF),
    Measured(r"H200", 794.5, 1453.4, _MAMF_H200),
    Measured(r"GH200 144GB?( HBM3e)?", 828.6, 1535, _MAMF + "; the 900 W board with 141 GB of HBM3e"),
    Measured(r"B200", 1745, 3432.5, _MAMF),
    Measured(r"B300( SXM6)?( AC)?", 1769, None, _MAMF),
    Measured(r"GB200", 1822, None, _MAMF),
)

_ALIASES = {"float16": "fp16", "half": "fp16", "16-mixed": "fp16", "bfloat16": "bf16", "bf16-mixed": "bf16"}
_MAKER = re.compile(r"^(NVIDIA )?(Tesla )?", re.IGNORECASE)


Row = TypeVar("Row", Peak, Measured)


@cache  # asked for each rank, each second
def peaks_of(device_name: str) -> Mapping[str, float]:
    """Return dtype -> dense peak FLOP/s of a device by its NVML product name; empty for an unknown one."""
    return _flops(_row_of(PEAKS, device_name))


@cache
def achievable_of(device_name: str) -> Mapping[str, float]:
    """Return dtype -> highest publicly measured matmul FLOP/s of a device; empty where nobody published one."""
    return _flops(_row_of(MEASURED, device_name))


def _row_of(table: Iterable[Row], device_name: str) -> Row | None:
    model = _MAKER.sub("", device_name.strip(), count=1)
    return next((row for row in table if re.fullmatch(row.name, model, re.IGNORECASE)), None)


def _flops(row: Peak | Measured | None) -> dict[str, float]:
    figures = ((dtype, getattr(row, dtype, None)) for dtype in DTYPES)
    return {dtype: tera * 1e12 for dtype, tera in figures if tera is not None}


def dtype_of(precision: str) -> str:
    """Return the peak table's word for a precision as PyTorch, Lightning or a person writes it."""
    word = precision.lower().removeprefix("torch.")
    return _ALIASES.get(word, word)
