"""GPUs for a machine that has none: the exporter reads them through the real `pynvml` from a library of our own."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tachograph_lab.fake_nvml.library import LIBRARY, FakeNvml, build


def needed() -> bool:
    """Return whether this machine lacks NVIDIA's library but has the C compiler to build a simulated one."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return shutil.which(os.environ.get("CC", "cc")) is not None
    return False


def environment(folder: Path, count: int) -> Mapping[str, str]:
    """Build the library into `folder` and return the variables with which a process sees `count` GPUs at work."""
    fake = FakeNvml(build(folder), folder / "state", live=True)
    fake.state.count = count
    return fake.environment()
