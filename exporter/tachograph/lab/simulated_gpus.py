"""GPUs for a machine that has none: the exporter reads them through the real `pynvml` from the tests' NVML library."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from tachograph.lab.checkout import root

LIBRARY = "libnvidia-ml.so.1"


def needed() -> bool:
    """Return whether this machine lacks NVIDIA's library but has the C compiler to build a made-up one."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return shutil.which(os.environ.get("CC", "cc")) is not None
    return False


def library_module() -> ModuleType:
    """Return tests/nvml/build.py of this checkout: it builds the made-up library, and steers it."""
    specification = importlib.util.spec_from_file_location("fake_nvml", root() / "tests/nvml/build.py")
    if specification is None or specification.loader is None:
        raise FileNotFoundError("tests/nvml/build.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def environment(folder: Path, count: int) -> Mapping[str, str]:
    """Build the library into `folder` and return the variables with which a process sees `count` GPUs at work."""
    module = library_module()
    fake = module.FakeNvml(module.build(folder), folder / "state", live=True)
    fake.state.count = count
    variables: Mapping[str, str] = fake.environment()
    return variables
