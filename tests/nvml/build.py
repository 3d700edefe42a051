"""Builds the made-up NVML library of `fake_nvml.c` and lets a test change what it answers while a program reads it.

Standard library only, so that the demo can load it by path. By hand: `python tests/nvml/build.py FOLDER` prints the
folder to put on LD_LIBRARY_PATH.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
LIBRARY = "libnvidia-ml.so.1"
WRITER = "write-state"
STATE_VARIABLE = "FAKE_NVML_STATE"
MAX_GPUS = 16
CALL_COUNT = 25
FOREVER = -1

NOT_SUPPORTED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = 3, 9, 15, 16, 18, 999


def build(folder: Path, without: Sequence[str] = ()) -> Path:
    """Return a folder for LD_LIBRARY_PATH holding the library, compiled only if source or options changed.

    `without` names NVML functions to leave out, as an old driver does. Needs a C compiler: `$CC`, else `cc`.
    """
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise RuntimeError(f"the made-up NVML library needs a C compiler: {compiler} is not on the PATH")
    missing = [f"-D{symbol}=left_out_{symbol}" for symbol in without]
    key = hashlib.sha256(SOURCE.read_bytes() + repr((compiler, missing)).encode()).hexdigest()[:16]
    made = folder / key
    if not made.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder, prefix=f"{key}-"))
        common = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", *missing, str(SOURCE)]
        library = ["-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", "-o", str(fresh / LIBRARY), "-lm"]
        subprocess.run([*common, *library], check=True)
        subprocess.run([*common, "-DSTATE_WRITER", "-o", str(fresh / WRITER)], check=True)
        fresh.chmod(0o755)
        try:
            fresh.rename(made)
        except OSError:  # another build was quicker
            shutil.rmtree(fresh)
    return made


class Gpu(ctypes.Structure):
    """The struct `gpu` of the C source; units as NVML gives them (bytes, mW, mJ, MHz, percent)."""

    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("energy_time", ctypes.c_double),
        ("memory_total", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("memory_reserved", ctypes.c_uint64),
        ("energy", ctypes.c_uint64),
        ("clock_events", ctypes.c_uint64),
        ("ecc", ctypes.c_uint64 * 2 * 2),
        ("process_memory", ctypes.c_uint64),
        ("calls", ctypes.c_uint64 * CALL_COUNT),
        ("errors", ctypes.c_uint32 * CALL_COUNT),
        ("error", ctypes.c_uint32),
        ("block_ms", ctypes.c_int32),
        ("utilization", ctypes.c_uint32 * 2),
        ("temperature", ctypes.c_uint32 * 2),
        ("thresholds", ctypes.c_uint32 * 2),
        ("power", ctypes.c_uint32),
        ("power_limit", ctypes.c_uint32),
        ("clocks", ctypes.c_uint32 * 4),
        ("max_clocks", ctypes.c_uint32 * 4),
        ("persistence", ctypes.c_uint32),
        ("mig", ctypes.c_uint32),
        ("process_id", ctypes.c_uint32),
        ("remapped", ctypes.c_uint32 * 4),
        ("pcie", ctypes.c_uint32 * 3),
    )


class State(ctypes.Structure):
    """The struct `state` of the C source."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("init_error", ctypes.c_uint32),
        ("init_block_ms", ctypes.c_int32),
        ("init_calls", ctypes.c_uint32),
        ("live", ctypes.c_uint32),
        ("driver_version", ctypes.c_char * 80),
        ("gpus", Gpu * MAX_GPUS),
    )


class FakeNvml:
    """One made-up node: `state` and `gpus` are shared with every program started with `environment()`.

    An assignment takes effect at the program's next NVML call: `fake.gpus[3].error = GPU_IS_LOST`. Values stand still
    unless `live`; the file starts with eight GPUs.
    """

    def __init__(self, library: Path, path: Path, *, live: bool = False) -> None:
        written = subprocess.run([str(library / WRITER), str(path)], check=True, capture_output=True, text=True)
        self._calls = written.stdout.split()
        self._library = library
        self._path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = State.from_buffer(self._map)
        if self.state.size != ctypes.sizeof(State) or len(self._calls) != CALL_COUNT:
            raise RuntimeError(f"{SOURCE.name} and the structures in {Path(__file__).name} differ")
        self.state.live = int(live)

    @property
    def gpus(self) -> Sequence[Gpu]:
        """All sixteen GPUs; the first `state.count` exist."""
        return self.state.gpus  # type: ignore[no-any-return]

    def environment(self) -> dict[str, str]:
        """Return the variables that make a new process see this node."""
        return {"LD_LIBRARY_PATH": str(self._library), STATE_VARIABLE: str(self._path)}

    def fail(self, call: str, error: int, *gpus: int) -> None:
        """Make one call, named as in CALLS of the C source, return `error` (0: succeed) on these GPUs, else on all."""
        for index in gpus or range(MAX_GPUS):
            self.gpus[index].errors[self._calls.index(call)] = error

    def called(self, call: str, gpu: int = 0) -> int:
        """Return how often a GPU was asked this."""
        return int(self.gpus[gpu].calls[self._calls.index(call)])

    def block(self, milliseconds: int) -> None:
        """Make every call on every GPU take so long; FOREVER until 0 is given."""
        for gpu in self.gpus:
            gpu.block_ms = milliseconds

    def break_all(self, error: int) -> None:
        """Make every call on every GPU return `error`; 0 heals them."""
        for gpu in self.gpus:
            gpu.error = error


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).resolve()))
