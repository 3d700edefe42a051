"""The bench's modules, which import one another by their bare names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")


@pytest.fixture(scope="session", autouse=True)
def _bench_on_the_path() -> Iterator[None]:
    sys.path.insert(0, BENCH)
    yield
    sys.path.remove(BENCH)


@pytest.fixture(scope="session")
def detectors() -> ModuleType:
    return importlib.import_module("detectors")


@pytest.fixture(scope="session")
def loss_traces() -> ModuleType:
    return importlib.import_module("loss_traces")
