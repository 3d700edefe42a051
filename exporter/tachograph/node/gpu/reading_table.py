"""The readings of a GPU: one row for each number.

Adding an NVML metric is one row in `catalog/gpu.py` and one row here: in `FIELDS` if NVML has a field id for it (all
fields of a GPU cost one driver call), in `ACTIVITIES` if GPM measures it, else in `CALLS`. Scales turn NVML's units
into base units, here and nowhere else. Ids and units are nvml.h's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tachograph.catalog import index as catalog
from tachograph.catalog.gpu import CLOCK_EVENT_REASONS, RECOVERY_ACTIONS
from tachograph.catalog.metric import Metric
from tachograph.node.driver.nvml import ALL_LINKS, NvmlGpu

SLOW_SECONDS = 15.0
"""How often what seldom changes is read; the rest is read at each collection."""

RETRY_SECONDS = 600.0
"""How long a reading the part does not have is left alone: a driver update or a MIG switch can bring it."""

Read: TypeAlias = Callable[[NvmlGpu], Sequence[float | None]]
Version: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """One number of a reading: its metric, the label values after gpu and uuid, and raw unit -> base unit.

    `words`: the number stands for one of these, which becomes the label value of a sample of 1.
    """

    metric: Metric
    labels: tuple[str, ...]
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


def _value(metric: Metric, *labels: str, scale: float = 1.0) -> Value:
    return Value(metric, labels, scale)


def _number(name: str, *arguments: object) -> Read:
    return lambda gpu: (gpu.call(name, *arguments),)


def _first(name: str) -> Read:
    return lambda gpu: (gpu.call(name)[0],)


def _members(name: str, *members: str) -> Read:
    def read(gpu: NvmlGpu) -> Sequence[float]:
        answer = gpu.call(name)
        return [getattr(answer, member) for member in members]

    return read


def _clock_events(gpu: NvmlGpu) -> Sequence[float]:
    bits = gpu.clock_events()
    return [bits >> position & 1 for position in range(len(CLOCK_EVENT_REASONS))]


def _links(gpu: NvmlGpu) -> Sequence[float | None]:
    links = gpu.links()
    known = [up for up in links if up is not None]
    return len(links), sum(known) if known or not links else None


def _fabric_ready(gpu: NvmlGpu) -> Sequence[float | None]:
    state, status = gpu.fabric()
    return (None if state == 0 else state == 3 and status == 0,)  # 0: the part has none; 3: registration is over


def _performance_state(gpu: NvmlGpu) -> Sequence[float | None]:
    state = gpu.call("nvmlDeviceGetPerformanceState")
    return (None if state == 32 else state,)  # NVML_PSTATE_UNKNOWN


CALLS: tuple[Call, ...] = (
    Call(
        _members("nvmlDeviceGetUtilizationRates", "gpu", "memory"),
        (
            _value(catalog.GPU_UTILIZATION, scale=PERCENT),
            _value(catalog.GPU_MEMORY_UTILIZATION, scale=PERCENT),
        ),
    ),
    Call(
        NvmlGpu.memory,
        (
            _value(catalog.GPU_MEMORY_TOTAL),
            _value(catalog.GPU_MEMORY_USED),
            _value(catalog.GPU_MEMORY_FREE),
            _value(catalog.GPU_MEMORY_RESERVED),
        ),
    ),
    Call(NvmlGpu.temperature, (_value(catalog.GPU_TEMPERATURE, "gpu"),)),
    Call(_number("nvmlDeviceGetPowerUsage"), (_value(catalog.GPU_POWER, scale=MILLI),)),
    Call(_number("nvmlDeviceGetClockInfo", 1), (_value(catalog.GPU_CLOCK, "sm", scale=MEGA),)),
    Call(_number("nvmlDeviceGetClockInfo", 2), (_value(catalog.GPU_CLOCK, "memory", scale=MEGA),)),
    Call(
        _clock_events,
        tuple(_value(catalog.GPU_CLOCK_EVENT, reason) for reason in CLOCK_EVENT_REASONS),
    ),
    Call(
        _number("nvmlDeviceGetTemperatureThreshold", 1),
        (_value(catalog.GPU_TEMPERATURE_THRESHOLD, "slowdown"),),
        slow=True,
    ),
    Call(
        _number("nvmlDeviceGetTemperatureThreshold", 0),
        (_value(catalog.GPU_TEMPERATURE_THRESHOLD, "shutdown"),),
        slow=True,
    ),
    Call(_number("nvmlDeviceGetMarginTemperature"), (_value(catalog.GPU_TEMPERATURE_MARGIN),), slow=True),
    Call(_number("nvmlDeviceGetEnforcedPowerLimit"), (_value(catalog.GPU_POWER_LIMIT, scale=MILLI),), slow=True),
    Call(_number("nvmlDeviceGetMaxClockInfo", 1), (_value(catalog.GPU_CLOCK_MAX, "sm", scale=MEGA),), slow=True),
    Call(_number("nvmlDeviceGetMaxClockInfo", 2), (_value(catalog.GPU_CLOCK_MAX, "memory", scale=MEGA),), slow=True),
    Call(_first("nvmlDeviceGetEncoderUtilization"), (_value(catalog.GPU_CODEC_UTILIZATION, "encoder", scale=PERCENT),),
         slow=True),
    Call(_first("nvmlDeviceGetDecoderUtilization"), (_value(catalog.GPU_CODEC_UTILIZATION, "decoder", scale=PERCENT),),
         slow=True),
    Call(NvmlGpu.sram_threshold_exceeded, (_value(catalog.GPU_SRAM_THRESHOLD),), slow=True),
    Call(_links, (_value(catalog.GPU_NVLINK_LINKS), _value(catalog.GPU_NVLINK_LINKS_ACTIVE)), slow=True),
    Call(_fabric_ready, (_value(catalog.GPU_FABRIC_READY),), slow=True),
    Call(_number("nvmlDeviceGetCurrPcieLinkGeneration"), (_value(catalog.GPU_PCIE_GENERATION),), slow=True),
    Call(_number("nvmlDeviceGetMaxPcieLinkGeneration"), (_value(catalog.GPU_PCIE_GENERATION_MAX),), slow=True),
    Call(_number("nvmlDeviceGetCurrPcieLinkWidth"), (_value(catalog.GPU_PCIE_WIDTH),), slow=True),
    Call(_number("nvmlDeviceGetMaxPcieLinkWidth"), (_value(catalog.GPU_PCIE_WIDTH_MAX),), slow=True),
    Call(
        _members("nvmlDeviceGetBAR1MemoryInfo", "bar1Total", "bar1Used"),
        (_value(catalog.GPU_BAR1_TOTAL), _value(catalog.GPU_BAR1_USED)),
        slow=True,
        spared=True,
    ),
    Call(
        _members("nvmlDeviceGetRowRemapperHistogram", *catalog.GPU_ROW_REMAP_BANKS.values),
        tuple(_value(catalog.GPU_ROW_REMAP_BANKS, spare) for spare in catalog.GPU_ROW_REMAP_BANKS.values),
        slow=True,
        spared=True,
    ),
    Call(_performance_state, (_value(catalog.GPU_PERFORMANCE_STATE),), slow=True, spared=True),
    Call(_number("nvmlDeviceGetPersistenceMode"), (_value(catalog.GPU_MODE, "persistence"),), slow=True, spared=True),
    Call(lambda gpu: (gpu.mig_enabled(),), (_value(catalog.GPU_MODE, "mig"),), slow=True, spared=True),
)  # fmt: skip


def _slow(field_id: int, value: Value, *, scope: int = 0, spared: bool = False) -> Field:
    return Field(field_id, value, scope, slow=True, spared=spared)


def _held(reason: str) -> Value:
    """Time in which clocks were held down; all these counters are in nanoseconds, the three latest too (nvml.h)."""
    return _value(catalog.GPU_CLOCK_EVENT_SECONDS, reason, scale=NANO)


# The counters of the newest clock-event reasons came with driver 575 as 251 to 253 and moved in the second release of
# 580 to where the driver before had power smoothing (nvml.h of both; "Known issues" of the NVML reference).
_CLOCK_EVENTS_CAME, _CLOCK_EVENTS_MOVED = (575,), (580, 82)
_LATEST_EVENTS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")

_ECC_PLACES = ("l1", "l2", "device_memory", "register_file", "texture_memory")


def _ecc_places(first: int, scope: str) -> list[Field]:
    """Five places with a corrected and an uncorrected count each, then the CBU, which corrects nothing."""
    kinds = [(error, place) for place in _ECC_PLACES for error in ("corrected", "uncorrected")]
    return [
        _slow(first + offset, _value(catalog.GPU_ECC_LOCATION_ERRORS, error, scope, place), spared=True)
        for offset, (error, place) in enumerate([*kinds, ("uncorrected", "cbu")])
    ]


FIELDS: tuple[Field, ...] = (
    Field(3, _value(catalog.GPU_ECC_ERRORS, "corrected", "volatile")),
    Field(4, _value(catalog.GPU_ECC_ERRORS, "uncorrected", "volatile")),
    Field(74, _held("sw_power_cap")),
    Field(75, _held("thermal")),
    Field(76, _held("sync_boost")),
    Field(77, _held("board_limit")),
    Field(78, _held("low_utilization")),
    Field(79, _held("reliability")),
    *(Field(251 + i, _held(reason), since=_CLOCK_EVENTS_CAME, before=_CLOCK_EVENTS_MOVED)
      for i, reason in enumerate(_LATEST_EVENTS)),
    *(Field(269 + i, _held(reason), since=_CLOCK_EVENTS_MOVED) for i, reason in enumerate(_LATEST_EVENTS)),
    Field(82, _value(catalog.GPU_TEMPERATURE, "memory")),
    Field(83, _value(catalog.GPU_ENERGY, scale=MILLI)),
    Field(186, _value(catalog.GPU_POWER_INSTANT, scale=MILLI)),
    # NVLink up to generation 4 and, from 202 on, generation 5.
    Field(138, _value(catalog.GPU_NVLINK_BYTES, "transmit", scale=KIBI), ALL_LINKS),
    Field(139, _value(catalog.GPU_NVLINK_BYTES, "receive", scale=KIBI), ALL_LINKS),
    Field(202, _value(catalog.GPU_NVLINK_BYTES, "transmit"), ALL_LINKS),
    Field(204, _value(catalog.GPU_NVLINK_BYTES, "receive"), ALL_LINKS),
    _slow(38, _value(catalog.GPU_NVLINK_ERRORS, "crc_flit")),
    _slow(45, _value(catalog.GPU_NVLINK_ERRORS, "crc_data")),
    _slow(52, _value(catalog.GPU_NVLINK_ERRORS, "replay")),
    _slow(59, _value(catalog.GPU_NVLINK_ERRORS, "recovery")),
    _slow(213, _value(catalog.GPU_NVLINK_ERRORS, "recovery"), scope=ALL_LINKS),
    _slow(214, _value(catalog.GPU_NVLINK_ERRORS, "recovery_failed"), scope=ALL_LINKS),
    _slow(219, _value(catalog.GPU_NVLINK_ERRORS, "effective"), scope=ALL_LINKS),
    _slow(5, _value(catalog.GPU_ECC_ERRORS, "corrected", "aggregate")),
    _slow(6, _value(catalog.GPU_ECC_ERRORS, "uncorrected", "aggregate")),
    *_ecc_places(7, "volatile"),
    *_ecc_places(18, "aggregate"),
    _slow(29, _value(catalog.GPU_RETIRED_PAGES, "corrected")),
    _slow(30, _value(catalog.GPU_RETIRED_PAGES, "uncorrected")),
    _slow(31, _value(catalog.GPU_RETIREMENT_PENDING)),
    _slow(142, _value(catalog.GPU_REMAPPED_ROWS, "corrected")),
    _slow(143, _value(catalog.GPU_REMAPPED_ROWS, "uncorrected")),
    _slow(144, _value(catalog.GPU_ROW_REMAP_PENDING)),
    _slow(145, _value(catalog.GPU_ROW_REMAP_FAILED)),
    _slow(230, Value(catalog.GPU_RECOVERY_ACTION, (), words=RECOVERY_ACTIONS)),
    _slow(94, _value(catalog.GPU_PCIE_REPLAYS)),
    *(_slow(173 + i, _value(catalog.GPU_PCIE_ERRORS, error), spared=True)
      for i, error in enumerate(catalog.GPU_PCIE_ERRORS.values)),
    # nvml.h warns that these may wrap. 32 bits of bytes wrap in less than a second of PCIe, which nobody can undo.
    Field(197, _value(catalog.GPU_PCIE_BYTES, "transmit"), slow=True, spared=True, wide=True),
    Field(198, _value(catalog.GPU_PCIE_BYTES, "receive"), slow=True, spared=True, wide=True),
    _slow(1, _value(catalog.GPU_MODE, "ecc")),
    _slow(187, _value(catalog.GPU_POWER_LIMIT_BOUND, "min", scale=MILLI)),
    _slow(188, _value(catalog.GPU_POWER_LIMIT_BOUND, "max", scale=MILLI)),
    _slow(189, _value(catalog.GPU_POWER_LIMIT_BOUND, "default", scale=MILLI)),
    _slow(192, _value(catalog.GPU_POWER_LIMIT_BOUND, "requested", scale=MILLI)),
)  # fmt: skip

ACTIVITIES: tuple[Activity, ...] = (
    Activity(1, _value(catalog.GPU_ENGINE_ACTIVE, scale=PERCENT)),
    Activity(2, _value(catalog.GPU_SM_ACTIVE, scale=PERCENT)),
    Activity(3, _value(catalog.GPU_SM_OCCUPANCY, scale=PERCENT)),
    Activity(5, _value(catalog.GPU_TENSOR_ACTIVE, scale=PERCENT)),
    Activity(10, _value(catalog.GPU_DRAM_ACTIVE, scale=PERCENT)),
    Activity(4, _value(catalog.GPU_PIPE_ACTIVE, "integer", scale=PERCENT)),
    Activity(11, _value(catalog.GPU_PIPE_ACTIVE, "fp64", scale=PERCENT)),
    Activity(12, _value(catalog.GPU_PIPE_ACTIVE, "fp32", scale=PERCENT)),
    Activity(13, _value(catalog.GPU_PIPE_ACTIVE, "fp16", scale=PERCENT)),
    Activity(20, _value(catalog.GPU_PCIE_RATE, "transmit", scale=MEBI)),
    Activity(21, _value(catalog.GPU_PCIE_RATE, "receive", scale=MEBI)),
    Activity(60, _value(catalog.GPU_NVLINK_RATE, "receive", scale=MEBI)),
    Activity(61, _value(catalog.GPU_NVLINK_RATE, "transmit", scale=MEBI)),
    Activity(248, _value(catalog.GPU_SM_CYCLES), counted=True),
    Activity(249, _value(catalog.GPU_SM_ACTIVE_CYCLES), counted=True),
    Activity(250, _value(catalog.GPU_TENSOR_ACTIVE_CYCLES), counted=True),
    Activity(257, _value(catalog.GPU_PIPE_ACTIVE_CYCLES, "integer"), counted=True),
    Activity(258, _value(catalog.GPU_PIPE_ACTIVE_CYCLES, "fp64"), counted=True),
    Activity(259, _value(catalog.GPU_PIPE_ACTIVE_CYCLES, "fp32"), counted=True),
    Activity(260, _value(catalog.GPU_PIPE_ACTIVE_CYCLES, "fp16"), counted=True),
)

MIG_ACTIVITIES: tuple[Activity, ...] = (
    Activity(2, _value(catalog.MIG_SM_ACTIVE, scale=PERCENT)),
    Activity(5, _value(catalog.MIG_TENSOR_ACTIVE, scale=PERCENT)),
    Activity(10, _value(catalog.MIG_DRAM_ACTIVE, scale=PERCENT)),
)
