"""Builds the fake NVML library from this folder's C sources and lets a test change its answers at run time.

By hand: `python lab/tachograph_lab/fake_nvml/library.py FOLDER` prints the folder for LD_LIBRARY_PATH.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"
WRITER_OBJECT = "write_state.o"
FRESH_STATE, CALL_NAMES = "state", "calls"
STATE_VARIABLE = "FAKE_NVML_STATE"
MAX_GPUS, MAX_LINKS, MAX_PROCESSES, MAX_MIGS = 16, 18, 4, 7
FIELD_IDS, GPM_IDS, SETTINGS, EVENTS = 308, 477, 128, 64
CALL_COUNT = 57
FOREVER = -1
ALL_LINKS = 0xFFFFFFFF  # the scope of an NVLink field that sums over all links
BY_TABLE = FORGOTTEN = 0xFFFFFFFF
XID_EVENT = 0x8

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 9, 15, 16
VERSION_MISMATCH, UNKNOWN = 18, 999


def build(folder: Path, without: Sequence[str] = ()) -> Path:
    """Return a folder for LD_LIBRARY_PATH with the library, compiled only if sources or options have changed.

    `without` names NVML functions to omit, as an old driver does. Needs a C compiler: `$CC`, else `cc`.
    """
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        raise RuntimeError(f"the fake NVML library needs a C compiler: {compiler} is not on the PATH")
    missing = [f"-D{symbol}=left_out_{symbol}" for symbol in without]
    texts = {path.name: path.read_bytes() for path in sorted(FOLDER.glob("*.[ch]"))}
    key = hashlib.sha256(repr((compiler, missing, texts)).encode()).hexdigest()[:16]
    made = folder / key
    if not made.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder, prefix=f"{key}-"))
        _compile([compiler, "-O2", "-Wall", "-Wextra", "-Werror", *missing], texts, fresh)
        fresh.chmod(0o755)
        try:
            fresh.rename(made)
        except OSError:  # another build was faster
            shutil.rmtree(fresh)
    return made


def _compile(command: Sequence[str], texts: dict[str, bytes], made: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # compile exactly what was hashed, even while someone edits
        sources = Path(name)
        for file, text in texts.items():
            (sources / file).write_bytes(text)
        own = [file for file in texts if file.endswith(".c")]
        objects = [str(Path(file).with_suffix(".o")) for file in own]
        library = [file for file in objects if file != WRITER_OBJECT]
        for arguments in (
            ["-fPIC", "-c", *own],
            ["-shared", f"-Wl,-soname,{LIBRARY}", "-o", str(made / LIBRARY), *library, "-lm"],
            ["-o", "write-state", *objects, "-lm"],
        ):
            subprocess.run([*command, *arguments], check=True, cwd=sources)
        calls = subprocess.run(
            [str(sources / "write-state"), str(made / FRESH_STATE)], check=True, capture_output=True
        ).stdout
        (made / CALL_NAMES).write_bytes(calls)


class FakeSetting(ctypes.Structure):
    """A test's setting of one field value or GPM metric."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("scope", ctypes.c_uint32),
        ("error", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
        ("value", ctypes.c_uint64),
    )


class FakeMig(ctypes.Structure):
    """One MIG device; an empty profile means that there is none."""

    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("profile", ctypes.c_char * 32),
        ("memory_total", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("gpu_instance", ctypes.c_uint32),
        ("compute_instance", ctypes.c_uint32),
        ("slices", ctypes.c_uint32),
        ("multiprocessors", ctypes.c_uint32),
    )


class FakeGpu(ctypes.Structure):
    """The struct `gpu` of state.h; units are NVML's (bytes, mW, mJ, MHz, percent, ns)."""

    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("vbios", ctypes.c_char * 32),
        ("bus_id", ctypes.c_char * 32),
        ("counted_until", ctypes.c_uint64),
        ("energy", ctypes.c_uint64),
        ("since_boot", ctypes.c_uint64 * 13),
        ("nvlink_bytes", ctypes.c_uint64 * 2),
        ("event_time", ctypes.c_uint64 * 8),
        ("memory_total", ctypes.c_uint64),
        ("memory_used", ctypes.c_uint64),
        ("memory_reserved", ctypes.c_uint64),
        ("bar1", ctypes.c_uint64 * 2),
        ("clock_events", ctypes.c_uint64),
        ("ecc", ctypes.c_uint64 * 2 * 2),
        ("process_memory", ctypes.c_uint64),
        ("event_types", ctypes.c_uint64),
        ("calls", ctypes.c_uint64 * CALL_COUNT),
        ("errors", ctypes.c_uint32 * CALL_COUNT),
        ("error", ctypes.c_uint32),
        ("block_ms", ctypes.c_int32),
        ("unplugged", ctypes.c_uint32),
        ("utilization", ctypes.c_uint32 * 2),
        ("codec", ctypes.c_uint32 * 2),
        ("temperature", ctypes.c_uint32 * 2),
        ("thresholds", ctypes.c_uint32 * 4),
        ("power", ctypes.c_uint32),
        ("power_limit", ctypes.c_uint32),
        ("power_limits", ctypes.c_uint32 * 3),
        ("clocks", ctypes.c_uint32 * 4),
        ("max_clocks", ctypes.c_uint32 * 4),
        ("multiprocessors", ctypes.c_uint32),
        ("performance_state", ctypes.c_uint32),
        ("persistence", ctypes.c_uint32),
        ("ecc_mode", ctypes.c_uint32),
        ("sram_threshold", ctypes.c_uint32),
        ("retired", ctypes.c_uint32 * 3),
        ("remapped", ctypes.c_uint32 * 4),
        ("banks", ctypes.c_uint32 * 5),
        ("recovery_action", ctypes.c_uint32),
        ("mig", ctypes.c_uint32),
        ("process_ids", ctypes.c_uint32 * MAX_PROCESSES),
        ("pcie", ctypes.c_uint32 * 3),
        ("pcie_max", ctypes.c_uint32 * 2),
        ("links", ctypes.c_uint32),
        ("fabric", ctypes.c_uint32 * 4),
        ("gpm", ctypes.c_uint32),
        ("field_calls", ctypes.c_uint32 * FIELD_IDS),
        ("gpm_calls", ctypes.c_uint32 * GPM_IDS),
        ("field_settings", FakeSetting * SETTINGS),
        ("gpm_settings", FakeSetting * SETTINGS),
        ("migs", FakeMig * MAX_MIGS),
    )

    @property
    def process_id(self) -> int:
        """The first process on this GPU; 0: none."""
        return int(self.process_ids[0])

    @process_id.setter
    def process_id(self, pid: int) -> None:
        self.process_ids[0] = pid


class FakeEvent(ctypes.Structure):
    """An NVML event of one GPU."""

    _fields_ = (
        ("type", ctypes.c_uint64),
        ("data", ctypes.c_uint64),
        ("gpu", ctypes.c_uint32),
        ("gpu_instance", ctypes.c_uint32),
        ("compute_instance", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class FakeState(ctypes.Structure):
    """The struct `state` of state.h."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("init_error", ctypes.c_uint32),
        ("init_block_ms", ctypes.c_int32),
        ("init_calls", ctypes.c_uint32),
        ("live", ctypes.c_uint32),
        ("cuda_version", ctypes.c_uint32),
        ("event_count", ctypes.c_uint32),
        ("driver_version", ctypes.c_char * 80),
        ("error_words", ctypes.c_char * 80),
        ("events", FakeEvent * EVENTS),
        ("gpus", FakeGpu * MAX_GPUS),
    )


class FakeNvml:
    """A fake node: `state` and `gpus` are shared with every program started with `environment()`.

    An assignment takes effect at the program's next NVML call: `fake.gpus[3].error = GPU_IS_LOST`. Values are constant
    unless `live`; the node starts with eight healthy, busy H100s. A test's setting of a field value or GPM metric takes
    precedence, and is constant even if `live`.
    """

    def __init__(self, library: Path, path: Path, *, live: bool = False) -> None:
        self._calls = (library / CALL_NAMES).read_text().split()
        self._library = library
        self._path = path
        shutil.copyfile(library / FRESH_STATE, path)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        if len(self._map) != ctypes.sizeof(FakeState) or len(self._calls) != CALL_COUNT:
            raise RuntimeError(f"state.h and the structures in {Path(__file__).name} differ")
        self.state = FakeState.from_buffer(self._map)
        self.state.live = int(live)

    @property
    def gpus(self) -> Sequence[FakeGpu]:
        """All sixteen GPUs; the first `state.count` exist."""
        return self.state.gpus  # type: ignore[no-any-return]

    def environment(self) -> dict[str, str]:
        """Return the environment variables that make a new process see this node."""
        return {"LD_LIBRARY_PATH": str(self._library), STATE_VARIABLE: str(self._path)}

    def fail(self, call: str, error: int, *gpus: int) -> None:
        """Make one call, named as in CALLS of state.h, return `error` (0: succeed) on these GPUs, else on all."""
        for index in gpus or range(MAX_GPUS):
            self.gpus[index].errors[self._calls.index(call)] = error

    def called(self, call: str, gpu: int = 0) -> int:
        """Return how often a call was made for a GPU."""
        return int(self.gpus[gpu].calls[self._calls.index(call)])

    def field(self, gpu: int, field_id: int, value: float, scope: int = 0, value_type: int = BY_TABLE) -> None:
        """Set a field value (NVML_FI_*), in NVML's unit; this works for ids that no H100 has, too.

        `scope` is the link, or ALL_LINKS, for NVLink fields. A float becomes a value of type double, a whole number one
        of the driver's type unless `value_type` (nvmlValueType_t) gives another.
        """
        if isinstance(value, float):
            self._set(self.gpus[gpu].field_settings, field_id, scope, struct.pack("d", value), value_type=0)
        else:
            whole = (value % 2**64).to_bytes(8, sys.byteorder)
            self._set(self.gpus[gpu].field_settings, field_id, scope, whole, value_type=value_type)

    def field_error(self, gpu: int, field_id: int, code: int, scope: int = 0) -> None:
        """Make a field value fail while the call that reads it succeeds; 0 removes the setting."""
        self._set(self.gpus[gpu].field_settings, field_id, scope, error=code, forget=not code)

    def field_asked(self, gpu: int, field_id: int) -> int:
        """Return how often a field value of a GPU was read."""
        return int(self.gpus[gpu].field_calls[field_id])

    def gpm(self, gpu: int, metric_id: int, value: float, instance: int = 0) -> None:
        """Set a GPM metric, in GPM's unit (percent, MiB/s, cycles, bytes); NaN is allowed.

        `instance` is the GPU instance of a MIG device, 0 for the whole GPU. The cycle and byte counters of a live
        node grow with the sampled metrics: 10 for metric 2 lets the active cycles grow at a tenth of all.
        """
        self._set(self.gpus[gpu].gpm_settings, metric_id, instance, struct.pack("d", value))

    def gpm_error(self, gpu: int, metric_id: int, code: int) -> None:
        """Make a GPM metric fail while the call that reads it succeeds; 0 removes the setting."""
        self._set(self.gpus[gpu].gpm_settings, metric_id, 0, error=code, forget=not code)

    def gpm_asked(self, gpu: int, metric_id: int) -> int:
        """Return how often a GPM metric of a GPU was read."""
        return int(self.gpus[gpu].gpm_calls[metric_id])

    def _set(
        self,
        settings: Sequence[FakeSetting],
        own_id: int,
        scope: int,
        value: bytes = bytes(8),
        *,
        error: int = 0,
        value_type: int = BY_TABLE,
        forget: bool = False,
    ) -> None:
        known = [one for one in settings if (one.id, one.scope) == (own_id, scope)]
        place = (known or [one for one in settings if one.id in (0, FORGOTTEN)])[0]
        place.value = int.from_bytes(value, sys.byteorder)
        place.scope, place.type, place.error = scope, value_type, error
        # The id comes last: to a reader in another process an entry with an id is complete, and 0 ends the table.
        place.id = FORGOTTEN if forget else own_id

    def queue_xid(self, gpu: int, xid: int) -> None:
        """Report an Xid to every event set, of any process, that is registered for this GPU."""
        self.queue_event(gpu, XID_EVENT, xid)

    def queue_event(self, gpu: int, event_type: int, data: int = 0) -> None:
        """Report an NVML event to every event set that is registered for its type on this GPU."""
        event = FakeEvent(event_type, data, gpu, 0xFFFFFFFF, 0xFFFFFFFF)
        self.state.events[self.state.event_count % EVENTS] = event
        self.state.event_count += 1

    def unplug(self, gpu: int) -> None:
        """Take a GPU off the bus: open handles report it as lost, later GPUs move up, and the count decreases."""
        self.gpus[gpu].unplugged = 1

    def plug(self, gpu: int) -> None:
        """Put an unplugged GPU back."""
        self.gpus[gpu].unplugged = 0

    def hang(self, gpu: int) -> None:
        """Make every call on a GPU hang until `heal`; calls on other GPUs still work."""
        self.gpus[gpu].block_ms = FOREVER

    def heal(self, gpu: int) -> None:
        """Make a GPU work again after any error of the whole GPU."""
        self.gpus[gpu].block_ms = self.gpus[gpu].error = self.gpus[gpu].unplugged = 0

    def reload_driver(self) -> None:
        """Reset everything counted since the driver was loaded: energy, cycles, bytes, times, replays, volatile ECC."""
        for gpu in self.gpus:
            for counters in (gpu.since_boot, gpu.nvlink_bytes, gpu.event_time):
                ctypes.memset(counters, 0, ctypes.sizeof(counters))
            gpu.energy = gpu.pcie[2] = gpu.ecc[0][0] = gpu.ecc[1][0] = 0

    def add_mig(self, gpu: int, gpu_instance: int, compute_instance: int = 0, *, slices: int = 1) -> FakeMig:
        """Add a MIG device to a GPU, which is in MIG mode from then on, and return it."""
        self.gpus[gpu].mig = 1
        index = next(i for i, one in enumerate(self.gpus[gpu].migs) if not one.profile)
        mig: FakeMig = self.gpus[gpu].migs[index]
        mig.uuid = f"MIG-fa4e0000-0000-4000-8000-{gpu:06x}{index:06x}".encode()
        mig.memory_total, mig.memory_used = slices * 10 << 30, 1 << 30
        mig.gpu_instance, mig.compute_instance = gpu_instance, compute_instance
        mig.slices, mig.multiprocessors = slices, 16 * slices
        mig.profile = f"{slices}g.{slices * 10}gb".encode()
        return mig

    def block(self, milliseconds: int) -> None:
        """Make every call on every GPU take this long; FOREVER: until it is set to 0."""
        for gpu in self.gpus:
            gpu.block_ms = milliseconds

    def break_all(self, error: int) -> None:
        """Make every call on every GPU return `error`; 0 heals them."""
        for gpu in self.gpus:
            gpu.error = error


def lacks_nvml() -> bool:
    """Return whether this machine lacks NVIDIA's library but has the C compiler to build a simulated one."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return shutil.which(os.environ.get("CC", "cc")) is not None
    return False


def simulated_gpus(folder: Path, count: int) -> dict[str, str]:
    """Build the library into `folder` and return the variables with which a process sees `count` GPUs at work."""
    fake = FakeNvml(build(folder), folder / "state", live=True)
    fake.state.count = count
    return fake.environment()


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).resolve()))
