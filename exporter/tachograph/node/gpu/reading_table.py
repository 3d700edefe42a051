"""The readings of a GPU: one row for each number.

Adding an NVML metric is one row in `catalog/gpu.py` and one row here: in `FIELDS` if NVML has a field id for it (all
fields of a GPU cost one driver call), in `ACTIVITIES` if GPM measures it, else in `CALLS`. Scales turn NVML's units
into base units, here and nowhere else. Ids and units are nvml.h's. Each number has the range in which it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tachograph.catalog import index as catalog
from tachograph.catalog.gpu import CLOCK_EVENT_REASONS, RECOVERY_ACTIONS
from tachograph.catalog.metric import Metric
from tachograph.node.driver.nvml import ALL_LINKS, NotSupported, NvmlFailure, NvmlGpu
from tachograph.node.gpu.possible import BLANKS, Range

SLOW_SECONDS = 15.0
"""How often what seldom changes is read; the rest is read at each collection."""

RETRY_SECONDS = 600.0
"""How long a reading the part does not have is left alone: a driver update or a MIG switch can bring it."""

Read: TypeAlias = Callable[[NvmlGpu], Sequence[float | None]]
Version: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """One number of a reading: its metric, the label values after gpu and uuid, and raw unit -> base unit.

    `possible`: where it can be, in base units. `words`: the number stands for one of these, which becomes the label
    value of a sample of 1.
    """

    metric: Metric
    labels: tuple[str, ...]
    possible: Range
    scale: float = 1.0
    words: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Call:
    """A driver call and the numbers it gives, in order; None among them is a number this part does not have.

    `slow`: seldom read. `spared`: not even read unless the user asks for detail.
    """

    read: Read
    values: tuple[Value, ...]
    slow: bool = False
    spared: bool = False


@dataclass(frozen=True, eq=False)
class Field:
    """A number that NVML serves by id (NVML_FI_DEV_*); of two with the same sample, the first that answers gives it.

    `since` and `before` are the driver versions between which the id has this meaning. `wide`: believed only if the
    driver counts it in 64 bits.
    """

    id: int
    value: Value
    scope: int = 0
    slow: bool = False
    spared: bool = False
    since: Version = ()
    before: Version = ()
    wide: bool = False


@dataclass(frozen=True, eq=False)
class Activity:
    """A number that GPM gives by id (NVML_GPM_METRIC_*) between two samples; `counted`: it only grows, since reboot."""

    id: int
    value: Value
    counted: bool = False


PERCENT, MILLI, NANO = 1e-2, 1e-3, 1e-9
MEGA = 1e6
KIBI, MEBI = 1024.0, 1048576.0

# Where a reading can be: twice and more what any part does, so that a real one is never lost, and far from what a blank
# or a broken one gives.
SHARE = Range(0, 1)
SAMPLED_SHARE = Range(0, 1.1)  # a quotient of two of GPM's samples, which are not taken at quite the same moment
FLAG = Range(0, 1)
CELSIUS = Range(0, 150)  # silicon does not survive 150, and -1 is how a signed 4294967295 reads
MARGIN = Range(-150, 200)
THRESHOLD = Range(20, 150)
# A GB300 draws 1,400 W, a board of the next generation 3,600 W. An instant's peak may be twice the limit.
LIMIT = Range(0, 20e3, sets="power limit")
POWER = Range(0, 20e3, under="power limit", times=3)
ENERGY = Range(0, 1e13, fastest=20e3)
SM_CLOCK_MAX, SM_CLOCK = Range(0, 10e9, sets="highest SM clock"), Range(0, 10e9, under="highest SM clock", times=1.5)
MEMORY_CLOCK_MAX = Range(0, 50e9, sets="highest memory clock")  # GDDR7: 14 GHz
MEMORY_CLOCK = Range(0, 50e9, under="highest memory clock", times=1.5)
HELD = Range(0, 1e9, fastest=4)  # seconds, of 30 years
MEMORY, MEMORY_PART = Range(0, 2**46, sets="memory"), Range(0, 2**46, under="memory")
COUNT = Range(0, 1e15, fastest=1e9)  # of errors: a broken link makes millions a second
FAULTS = Range(0, 1e9, fastest=1e6)  # of memory, and replays of PCIe, which NVML counts in 32 bits: 0xbadf1100 is none
BANKS = Range(0, 1e6)
CYCLES = Range(0, 1e24, fastest=1e13)  # of all SMs: 200 at 2 GHz are 4e11
NVLINK_BYTES, NVLINK_RATE = Range(0, 1e24, fastest=1e14), Range(0, 1e14)  # generation 6: 3.6 TB/s
PCIE_BYTES, PCIE_RATE = Range(0, 1e24, fastest=1e12), Range(0, 1e12)  # generation 7: 0.25 TB/s
LINKS, LINKS_ACTIVE = Range(0, 256, sets="number of links"), Range(0, 256, under="number of links")
GENERATION, LANES = Range(0, 16), Range(0, 64)
STATE = Range(0, 15)
ACTION = Range(0, len(RECOVERY_ACTIONS) - 1)


def _value(metric: Metric, possible: Range, *labels: str, scale: float = 1.0) -> Value:
    return Value(metric, labels, possible, scale)


def _number(name: str, *arguments: object) -> Read:
    return lambda gpu: (gpu.call(name, *arguments),)


def _members(name: str, *members: str) -> Read:
    def read(gpu: NvmlGpu) -> Sequence[float]:
        answer = gpu.call(name)
        return [getattr(answer, member) for member in members]

    return read


_UNKNOWN_EVENT = 1 << 63  # nvmlClocksEventReasonUnknown


def _clock_events(gpu: NvmlGpu) -> Sequence[float]:
    bits = gpu.clock_events()
    if bits in BLANKS or bits & ~_UNKNOWN_EVENT >= 1 << 32:
        raise NvmlFailure("not possible: no GPU is throttled for all reasons")
    return [bits >> position & 1 for position in range(len(CLOCK_EVENT_REASONS))]


def _links(gpu: NvmlGpu) -> Sequence[float | None]:
    links = gpu.links()
    known = [up for up in links if up is not None]  # with a NaN among them the sum cannot be, and is not "down"
    return len(links), sum(known) if known or not links else None


FABRIC_PARTS = ("GB200", "GB300")
"""Parts that are built into an NVLink fabric: without one, they have lost it. An H100 may be in a machine with none."""

_TRUE = range(1, 2)  # 0: not supported, 2: false
_FABRIC_HEALTH: Mapping[str, tuple[int, int, range]] = {
    "bandwidth": (0, 0x3, _TRUE),
    "route_recovery": (2, 0x3, _TRUE),
    "route_unhealthy": (4, 0x3, _TRUE),
    "access_timeout": (6, 0x3, _TRUE),
    "configuration": (8, 0xF, range(2, 15)),  # 1: none is incorrect; 15: a blank
}
"""Each of FABRIC_FAULTS: its shift and width in NVML_GPU_FABRIC_HEALTH_MASK, and the values by which it is so."""


def _fabric(gpu: NvmlGpu) -> Sequence[float | None]:
    try:
        state, status, health = gpu.fabric()
    except NotSupported:
        if not _is_fabric_part(gpu):
            raise
        state = status = health = 0
    if state == 0 and not _is_fabric_part(gpu):  # the part has none
        return (None,) * (1 + len(_FABRIC_HEALTH))
    is_over = state == 3  # the registration
    faults = (
        1.0 if is_over and health >> shift & width in values else None
        for shift, width, values in _FABRIC_HEALTH.values()
    )
    return (is_over and status == 0, *faults)


def _is_fabric_part(gpu: NvmlGpu) -> bool:
    name = str(gpu.call("nvmlDeviceGetName"))
    return any(part in name for part in FABRIC_PARTS)


def _performance_state(gpu: NvmlGpu) -> Sequence[float | None]:
    state = gpu.call("nvmlDeviceGetPerformanceState")
    return (None if state == 32 else state,)  # NVML_PSTATE_UNKNOWN


CALLS: tuple[Call, ...] = (
    Call(
        _members("nvmlDeviceGetUtilizationRates", "gpu", "memory"),
        (
            _value(catalog.GPU_UTILIZATION, SHARE, scale=PERCENT),
            _value(catalog.GPU_MEMORY_UTILIZATION, SHARE, scale=PERCENT),
        ),
    ),
    Call(
        NvmlGpu.memory,
        (
            _value(catalog.GPU_MEMORY_TOTAL, MEMORY),
            _value(catalog.GPU_MEMORY_USED, MEMORY_PART),
            _value(catalog.GPU_MEMORY_FREE, MEMORY_PART),
            _value(catalog.GPU_MEMORY_RESERVED, MEMORY_PART),
        ),
    ),
    Call(NvmlGpu.temperature, (_value(catalog.GPU_TEMPERATURE, CELSIUS, "gpu"),)),
    Call(_number("nvmlDeviceGetPowerUsage"), (_value(catalog.GPU_POWER, POWER, scale=MILLI),)),
    Call(_number("nvmlDeviceGetClockInfo", 1), (_value(catalog.GPU_CLOCK, SM_CLOCK, "sm", scale=MEGA),)),
    Call(_number("nvmlDeviceGetClockInfo", 2), (_value(catalog.GPU_CLOCK, MEMORY_CLOCK, "memory", scale=MEGA),)),
    Call(
        _clock_events,
        tuple(_value(catalog.GPU_CLOCK_EVENT, FLAG, reason) for reason in CLOCK_EVENT_REASONS),
    ),
    Call(
        _number("nvmlDeviceGetTemperatureThreshold", 1),
        (_value(catalog.GPU_TEMPERATURE_THRESHOLD, THRESHOLD, "slowdown"),),
        slow=True,
    ),
    Call(
        _number("nvmlDeviceGetTemperatureThreshold", 0),
        (_value(catalog.GPU_TEMPERATURE_THRESHOLD, THRESHOLD, "shutdown"),),
        slow=True,
    ),
    Call(_number("nvmlDeviceGetMarginTemperature"), (_value(catalog.GPU_TEMPERATURE_MARGIN, MARGIN),), slow=True),
    Call(_number("nvmlDeviceGetEnforcedPowerLimit"), (_value(catalog.GPU_POWER_LIMIT, LIMIT, scale=MILLI),), slow=True),
    Call(_number("nvmlDeviceGetMaxClockInfo", 1), (_value(catalog.GPU_CLOCK_MAX, SM_CLOCK_MAX, "sm", scale=MEGA),),
         slow=True),
    Call(_number("nvmlDeviceGetMaxClockInfo", 2),
         (_value(catalog.GPU_CLOCK_MAX, MEMORY_CLOCK_MAX, "memory", scale=MEGA),), slow=True),
    Call(NvmlGpu.sram_threshold_exceeded, (_value(catalog.GPU_SRAM_THRESHOLD, FLAG),), slow=True),
    Call(_links, (_value(catalog.GPU_NVLINK_LINKS, LINKS), _value(catalog.GPU_NVLINK_LINKS_ACTIVE, LINKS_ACTIVE)),
         slow=True),
    Call(
        _fabric,
        (
            _value(catalog.GPU_FABRIC_READY, FLAG),
            *(_value(catalog.GPU_FABRIC_DEGRADED, FLAG, reason) for reason in _FABRIC_HEALTH),
        ),
        slow=True,
    ),
    Call(_number("nvmlDeviceGetCurrPcieLinkGeneration"), (_value(catalog.GPU_PCIE_GENERATION, GENERATION),), slow=True),
    Call(_number("nvmlDeviceGetMaxPcieLinkGeneration"), (_value(catalog.GPU_PCIE_GENERATION_MAX, GENERATION),),
         slow=True),
    Call(_number("nvmlDeviceGetCurrPcieLinkWidth"), (_value(catalog.GPU_PCIE_WIDTH, LANES),), slow=True),
    Call(_number("nvmlDeviceGetMaxPcieLinkWidth"), (_value(catalog.GPU_PCIE_WIDTH_MAX, LANES),), slow=True),
    Call(
        _members("nvmlDeviceGetRowRemapperHistogram", *catalog.GPU_ROW_REMAP_BANKS.values),
        tuple(_value(catalog.GPU_ROW_REMAP_BANKS, BANKS, spare) for spare in catalog.GPU_ROW_REMAP_BANKS.values),
        slow=True,
        spared=True,
    ),
    Call(_performance_state, (_value(catalog.GPU_PERFORMANCE_STATE, STATE),), slow=True, spared=True),
    Call(_number("nvmlDeviceGetPersistenceMode"), (_value(catalog.GPU_MODE, FLAG, "persistence"),),
         slow=True, spared=True),
    Call(lambda gpu: (gpu.mig_enabled(),), (_value(catalog.GPU_MODE, FLAG, "mig"),), slow=True, spared=True),
)  # fmt: skip


def _slow(field_id: int, value: Value, *, scope: int = 0, spared: bool = False) -> Field:
    return Field(field_id, value, scope, slow=True, spared=spared)


def _held(reason: str) -> Value:
    """Time in which clocks were held down; all these counters are in nanoseconds, the three latest too (nvml.h)."""
    return _value(catalog.GPU_CLOCK_EVENT_SECONDS, HELD, reason, scale=NANO)


# The counters of the newest clock-event reasons came with driver 575 as 251 to 253 and moved in the second release of
# 580 to where the driver before had power smoothing (nvml.h of both; "Known issues" of the NVML reference).
_CLOCK_EVENTS_CAME, _CLOCK_EVENTS_MOVED = (575,), (580, 82)
_LATEST_EVENTS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")

_ECC_PLACES = ("l1", "l2", "device_memory", "register_file", "texture_memory")


def _ecc_places(first: int, scope: str) -> list[Field]:
    """Five places with a corrected and an uncorrected count each, then the CBU, which corrects nothing."""
    kinds = [(error, place) for place in _ECC_PLACES for error in ("corrected", "uncorrected")]
    return [
        _slow(first + offset, _value(catalog.GPU_ECC_LOCATION_ERRORS, FAULTS, error, scope, place), spared=True)
        for offset, (error, place) in enumerate([*kinds, ("uncorrected", "cbu")])
    ]


FIELDS: tuple[Field, ...] = (
    Field(3, _value(catalog.GPU_ECC_ERRORS, FAULTS, "corrected", "volatile")),
    Field(4, _value(catalog.GPU_ECC_ERRORS, FAULTS, "uncorrected", "volatile")),
    Field(74, _held("sw_power_cap")),
    Field(75, _held("thermal")),
    Field(76, _held("sync_boost")),
    Field(77, _held("board_limit")),
    Field(78, _held("low_utilization")),
    Field(79, _held("reliability")),
    *(Field(251 + i, _held(reason), since=_CLOCK_EVENTS_CAME, before=_CLOCK_EVENTS_MOVED)
      for i, reason in enumerate(_LATEST_EVENTS)),
    *(Field(269 + i, _held(reason), since=_CLOCK_EVENTS_MOVED) for i, reason in enumerate(_LATEST_EVENTS)),
    Field(82, _value(catalog.GPU_TEMPERATURE, CELSIUS, "memory")),
    Field(83, _value(catalog.GPU_ENERGY, ENERGY, scale=MILLI)),
    Field(186, _value(catalog.GPU_POWER_INSTANT, POWER, scale=MILLI)),
    # NVLink up to generation 4 and, from 202 on, generation 5.
    Field(138, _value(catalog.GPU_NVLINK_BYTES, NVLINK_BYTES, "transmit", scale=KIBI), ALL_LINKS),
    Field(139, _value(catalog.GPU_NVLINK_BYTES, NVLINK_BYTES, "receive", scale=KIBI), ALL_LINKS),
    Field(202, _value(catalog.GPU_NVLINK_BYTES, NVLINK_BYTES, "transmit"), ALL_LINKS),
    Field(204, _value(catalog.GPU_NVLINK_BYTES, NVLINK_BYTES, "receive"), ALL_LINKS),
    _slow(38, _value(catalog.GPU_NVLINK_ERRORS, COUNT, "crc_flit")),
    _slow(45, _value(catalog.GPU_NVLINK_ERRORS, COUNT, "crc_data")),
    _slow(52, _value(catalog.GPU_NVLINK_ERRORS, COUNT, "replay")),
    _slow(59, _value(catalog.GPU_NVLINK_ERRORS, COUNT, "recovery")),
    _slow(213, _value(catalog.GPU_NVLINK_ERRORS, COUNT, "recovery"), scope=ALL_LINKS),
    _slow(214, _value(catalog.GPU_NVLINK_ERRORS, COUNT, "recovery_failed"), scope=ALL_LINKS),
    _slow(219, _value(catalog.GPU_NVLINK_ERRORS, COUNT, "effective"), scope=ALL_LINKS),
    _slow(5, _value(catalog.GPU_ECC_ERRORS, FAULTS, "corrected", "aggregate")),
    _slow(6, _value(catalog.GPU_ECC_ERRORS, FAULTS, "uncorrected", "aggregate")),
    *_ecc_places(7, "volatile"),
    *_ecc_places(18, "aggregate"),
    _slow(29, _value(catalog.GPU_RETIRED_PAGES, FAULTS, "corrected")),
    _slow(30, _value(catalog.GPU_RETIRED_PAGES, FAULTS, "uncorrected")),
    _slow(31, _value(catalog.GPU_RETIREMENT_PENDING, FLAG)),
    _slow(142, _value(catalog.GPU_REMAPPED_ROWS, FAULTS, "corrected")),
    _slow(143, _value(catalog.GPU_REMAPPED_ROWS, FAULTS, "uncorrected")),
    _slow(144, _value(catalog.GPU_ROW_REMAP_PENDING, FLAG)),
    _slow(145, _value(catalog.GPU_ROW_REMAP_FAILED, FLAG)),
    _slow(230, Value(catalog.GPU_RECOVERY_ACTION, (), ACTION, words=RECOVERY_ACTIONS)),
    _slow(94, _value(catalog.GPU_PCIE_REPLAYS, FAULTS)),
    *(_slow(173 + i, _value(catalog.GPU_PCIE_ERRORS, COUNT, error), spared=True)
      for i, error in enumerate(catalog.GPU_PCIE_ERRORS.values)),
    # nvml.h warns that these may wrap. 32 bits of bytes wrap in less than a second of PCIe, which nobody can undo.
    Field(197, _value(catalog.GPU_PCIE_BYTES, PCIE_BYTES, "transmit"), slow=True, spared=True, wide=True),
    Field(198, _value(catalog.GPU_PCIE_BYTES, PCIE_BYTES, "receive"), slow=True, spared=True, wide=True),
    _slow(1, _value(catalog.GPU_MODE, FLAG, "ecc")),
    _slow(187, _value(catalog.GPU_POWER_LIMIT_BOUND, LIMIT, "min", scale=MILLI)),
    _slow(188, _value(catalog.GPU_POWER_LIMIT_BOUND, LIMIT, "max", scale=MILLI)),
    _slow(189, _value(catalog.GPU_POWER_LIMIT_BOUND, LIMIT, "default", scale=MILLI)),
    _slow(192, _value(catalog.GPU_POWER_LIMIT_BOUND, LIMIT, "requested", scale=MILLI)),
)  # fmt: skip

ACTIVITIES: tuple[Activity, ...] = (
    Activity(1, _value(catalog.GPU_ENGINE_ACTIVE, SAMPLED_SHARE, scale=PERCENT)),
    Activity(2, _value(catalog.GPU_SM_ACTIVE, SAMPLED_SHARE, scale=PERCENT)),
    Activity(3, _value(catalog.GPU_SM_OCCUPANCY, SAMPLED_SHARE, scale=PERCENT)),
    Activity(5, _value(catalog.GPU_TENSOR_ACTIVE, SAMPLED_SHARE, scale=PERCENT)),
    Activity(10, _value(catalog.GPU_DRAM_ACTIVE, SAMPLED_SHARE, scale=PERCENT)),
    Activity(4, _value(catalog.GPU_PIPE_ACTIVE, SAMPLED_SHARE, "integer", scale=PERCENT)),
    Activity(11, _value(catalog.GPU_PIPE_ACTIVE, SAMPLED_SHARE, "fp64", scale=PERCENT)),
    Activity(12, _value(catalog.GPU_PIPE_ACTIVE, SAMPLED_SHARE, "fp32", scale=PERCENT)),
    Activity(13, _value(catalog.GPU_PIPE_ACTIVE, SAMPLED_SHARE, "fp16", scale=PERCENT)),
    Activity(20, _value(catalog.GPU_PCIE_RATE, PCIE_RATE, "transmit", scale=MEBI)),
    Activity(21, _value(catalog.GPU_PCIE_RATE, PCIE_RATE, "receive", scale=MEBI)),
    Activity(60, _value(catalog.GPU_NVLINK_RATE, NVLINK_RATE, "receive", scale=MEBI)),
    Activity(61, _value(catalog.GPU_NVLINK_RATE, NVLINK_RATE, "transmit", scale=MEBI)),
    Activity(248, _value(catalog.GPU_SM_CYCLES, CYCLES), counted=True),
    Activity(249, _value(catalog.GPU_SM_ACTIVE_CYCLES, CYCLES), counted=True),
    Activity(250, _value(catalog.GPU_TENSOR_ACTIVE_CYCLES, CYCLES), counted=True),
    Activity(257, _value(catalog.GPU_PIPE_ACTIVE_CYCLES, CYCLES, "integer"), counted=True),
    Activity(258, _value(catalog.GPU_PIPE_ACTIVE_CYCLES, CYCLES, "fp64"), counted=True),
    Activity(259, _value(catalog.GPU_PIPE_ACTIVE_CYCLES, CYCLES, "fp32"), counted=True),
    Activity(260, _value(catalog.GPU_PIPE_ACTIVE_CYCLES, CYCLES, "fp16"), counted=True),
)

MIG_ACTIVITIES: tuple[Activity, ...] = (
    Activity(2, _value(catalog.MIG_SM_ACTIVE, SAMPLED_SHARE, scale=PERCENT)),
    Activity(5, _value(catalog.MIG_TENSOR_ACTIVE, SAMPLED_SHARE, scale=PERCENT)),
    Activity(10, _value(catalog.MIG_DRAM_ACTIVE, SAMPLED_SHARE, scale=PERCENT)),
)

MIG_MEMORY: tuple[Value, ...] = (
    _value(catalog.MIG_MEMORY_TOTAL, MEMORY_PART),
    _value(catalog.MIG_MEMORY_USED, MEMORY_PART),
)


def every_value() -> Iterator[Value]:
    """Yield every number of the table; of single NVLink links there are more (nvlink.py)."""
    for call in CALLS:
        yield from call.values
    yield from (field.value for field in FIELDS)
    yield from (activity.value for activity in (*ACTIVITIES, *MIG_ACTIVITIES))
    yield from MIG_MEMORY
