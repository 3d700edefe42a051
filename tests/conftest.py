"""What tests of several parts share: two generations of Prometheus and Alertmanager, rules as data, made-up GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tachograph.lab import binaries, simulated_gpus

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = "bookworm", "sid"
"""Prometheus 2.42 and Alertmanager 0.25, which must be had; 3.5 and 0.33, from a suite whose versions roll."""


@pytest.fixture(scope="session", params=[OLDEST, NEWEST])
def programs(request: pytest.FixtureRequest) -> Mapping[str, Path]:
    """The programs of one generation."""
    try:
        return binaries.ensure(request.param)
    except binaries.BinariesUnavailable as error:
        if request.param == OLDEST:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def rules() -> list[dict[str, Any]]:
    """Every rule of every file, in order."""
    found: list[dict[str, Any]] = []
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            found += [rule | {"group": group["name"], "file": path.name} for rule in group["rules"]]
    return found


@pytest.fixture(scope="session")
def nvml_build() -> ModuleType:
    """The module tests/nvml/build.py."""
    return simulated_gpus.library_module()


@pytest.fixture(scope="session")
def library(nvml_build: ModuleType, pytestconfig: pytest.Config) -> Path:
    """The folder of the made-up NVML library; kept between runs."""
    folder: Path = nvml_build.build(pytestconfig.cache.mkdir("fake_nvml"))
    return folder


@pytest.fixture
def fake(nvml_build: ModuleType, library: Path, tmp_path: Path) -> Any:
    """Eight H100s whose values stand still."""
    return nvml_build.FakeNvml(library, tmp_path / "nvml-state")
