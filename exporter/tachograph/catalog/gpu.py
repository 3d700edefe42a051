"""Every metric of a GPU, from NVML."""

from __future__ import annotations

from tachograph.catalog.metric import COUNTER, GAUGE, GPU, INFO, Dcgm, Rows

CLOCK_EVENT_REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability",
)  # fmt: skip
"""NVML's clock-event ("throttle") reasons, lowest bit first (nvml.h, nvmlClocksEventReason*)."""

UNAVAILABLE_REASONS = ("lost", "reset_required", "hung", "error", "unplugged", "no_driver", "driver_mismatch", "worker")
"""Reasons why a GPU cannot be read: NVML's error, a driver call that does not return, or no worker process.

`error`: NVML fails with an unknown error; `unplugged`: the driver no longer lists it; `worker`: the process that reads
GPUs is not running.
"""

RECOVERY_ACTIONS = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
    "system_reboot",
)  # fmt: skip
"""Recovery actions of the driver, in the order of nvmlDeviceGpuRecoveryAction_t."""

XID_ACTIONS = ("application", "reset", "reboot", "return", "ignore", "unknown")
"""Responses to an Xid: check the application, reset the GPU, reboot the node, return the board, ignore it; `unknown`:
not documented."""

ROWS = Rows()
_row = ROWS.add
_MIG = (*GPU, "mig")
_MIB = 2**-20
_TUNING = "for tuning a model; alerts and panels read SM activity"
_SUSPECT = "to look at when a GPU is suspected, as in nvidia-smi -q"
_NANO = 1e9  # DCGM's violation fields: its older headers say microseconds, the newer ones nanoseconds, as NVML counts


# Identity, and whether it can be read.
GPU_INFO = _row(
    "gpu_info", INFO, "",
    (*GPU, "name", "pci_bus_id", "serial", "vbios_version", "driver_version", "cuda_version"),
    "A GPU in this node, readable or not.",
    few=True,
)  # fmt: skip
GPU_UP = _row("gpu_up", GAUGE, "", GPU, "1 if the last collection could read this GPU, otherwise 0.", few=True)
GPU_UNAVAILABLE = _row(
    "gpu_unavailable_info", INFO, "", (*GPU, "reason"),
    "Why a GPU cannot be read, while gpu_up is 0.", vocabulary=UNAVAILABLE_REASONS,
    few=True,
)  # fmt: skip
GPU_READINGS_FAILED = _row(
    "gpu_readings_failed", GAUGE, "", GPU,
    "Readings that failed in the last collection; unsupported ones do not count.",
)  # fmt: skip
GPU_JOB_INFO = _row(
    "gpu_job_info", INFO, "", (*GPU, "job_id"),
    "A batch job on this GPU, from a job-mapping directory.",
)  # fmt: skip

# Utilization. A "sampled" share covers the time between the exporter's last two readings.
GPU_UTILIZATION = _row(
    "gpu_utilization_ratio", GAUGE, "ratio", GPU,
    "Share of the last sample period with a kernel running; this is not MFU.",
    dcgm=(Dcgm("DCGM_FI_DEV_GPU_UTIL", 100),),
)  # fmt: skip
GPU_MEMORY_UTILIZATION = _row(
    "gpu_memory_controller_ratio", GAUGE, "ratio", GPU,
    "Share of the driver's last sample period in which device memory was read or written.",
    dcgm=(Dcgm("DCGM_FI_DEV_MEM_COPY_UTIL", 100),),
    detail=True,
)  # fmt: skip
GPU_SM_CYCLES = _row(
    "gpu_sm_cycles_total", COUNTER, "", GPU, "Cycles in which the SMs could have worked, since reboot.", few=True
)
GPU_SM_ACTIVE_CYCLES = _row(
    "gpu_sm_active_cycles_total", COUNTER, "", GPU,
    "Cycles with a warp on an SM; divided by gpu_sm_cycles_total, this is SM activity.",
    few=True,
)  # fmt: skip
GPU_TENSOR_ACTIVE_CYCLES = _row(
    "gpu_tensor_active_cycles_total", COUNTER, "", GPU,
    "Cycles in which tensor cores worked; divided by gpu_sm_cycles_total, this is tensor activity.",
)  # fmt: skip
GPU_PIPE_ACTIVE_CYCLES = _row(
    "gpu_pipe_active_cycles_total", COUNTER, "", (*GPU, "pipe"), "Cycles in which an arithmetic pipe worked.",
    ("fp64", "fp32", "fp16", "integer"), detail=True,
    unread=_TUNING,
)  # fmt: skip
GPU_ENGINE_ACTIVE = _row(
    "gpu_engine_active_ratio", GAUGE, "ratio", GPU,
    "Sampled share of time in which the compute or graphics engine was busy.",
    dcgm=(Dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),), detail=True,
)  # fmt: skip
GPU_SM_ACTIVE = _row(
    "gpu_sm_active_ratio", GAUGE, "ratio", GPU, "Sampled share of SM cycles with a warp on the SM.",
    dcgm=(Dcgm("DCGM_FI_PROF_SM_ACTIVE", default=False),),
    few=True,
)  # fmt: skip
GPU_SM_OCCUPANCY = _row(
    "gpu_sm_occupancy_ratio", GAUGE, "ratio", GPU,
    "Sampled number of warps on an SM, as a share of the warps it can hold.",
    dcgm=(Dcgm("DCGM_FI_PROF_SM_OCCUPANCY", default=False),), detail=True,
)  # fmt: skip
GPU_TENSOR_ACTIVE = _row(
    "gpu_tensor_active_ratio", GAUGE, "ratio", GPU, "Sampled share of cycles in which tensor cores worked.",
    dcgm=(Dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),),
)  # fmt: skip
GPU_DRAM_ACTIVE = _row(
    "gpu_dram_active_ratio", GAUGE, "ratio", GPU, "Sampled share of the device memory's peak bandwidth in use.",
    dcgm=(Dcgm("DCGM_FI_PROF_DRAM_ACTIVE"),),
    detail=True,
)  # fmt: skip
GPU_PIPE_ACTIVE = _row(
    "gpu_pipe_active_ratio", GAUGE, "ratio", (*GPU, "pipe"), "Sampled share of cycles in which a pipe worked.",
    ("fp64", "fp32", "fp16", "integer"),
    dcgm=(
        Dcgm("DCGM_FI_PROF_PIPE_FP64_ACTIVE", 1, ("fp64",), default=False),
        Dcgm("DCGM_FI_PROF_PIPE_FP32_ACTIVE", 1, ("fp32",), default=False),
        Dcgm("DCGM_FI_PROF_PIPE_FP16_ACTIVE", 1, ("fp16",), default=False),
    ), detail=True,
)  # fmt: skip

# Memory.
GPU_MEMORY_TOTAL = _row("gpu_memory_total_bytes", GAUGE, "bytes", GPU, "Device memory installed.", few=True)
GPU_MEMORY_USED = _row(
    "gpu_memory_used_bytes",
    GAUGE,
    "bytes",
    GPU,
    "Device memory in use.",
    dcgm=(Dcgm("DCGM_FI_DEV_FB_USED", _MIB),),
    few=True,
)
GPU_MEMORY_FREE = _row(
    "gpu_memory_free_bytes", GAUGE, "bytes", GPU,
    "Device memory free.", dcgm=(Dcgm("DCGM_FI_DEV_FB_FREE", _MIB),), detail=True,
    unread="installed memory minus used memory; users of dcgm-exporter expect it",
)  # fmt: skip
GPU_MEMORY_RESERVED = _row(
    "gpu_memory_reserved_bytes", GAUGE, "bytes", GPU, "Device memory reserved by the driver.",
    dcgm=(Dcgm("DCGM_FI_DEV_FB_RESERVED", _MIB),), detail=True,
    unread=_SUSPECT,
)  # fmt: skip

# Temperature, power, clocks.
GPU_TEMPERATURE = _row(
    "gpu_temperature_celsius", GAUGE, "celsius", (*GPU, "sensor"), "Temperature of the GPU die or of its memory.",
    ("gpu", "memory"),
    dcgm=(Dcgm("DCGM_FI_DEV_GPU_TEMP", 1, ("gpu",)), Dcgm("DCGM_FI_DEV_MEMORY_TEMP", 1, ("memory",))),
    detail=("memory",),
    few=True,
)  # fmt: skip
GPU_TEMPERATURE_THRESHOLD = _row(
    "gpu_temperature_threshold_celsius", GAUGE, "celsius", (*GPU, "threshold"),
    "Temperature at which the GPU slows down or shuts down.", ("slowdown", "shutdown"),
    dcgm=(
        Dcgm("DCGM_FI_DEV_SLOWDOWN_TEMP", 1, ("slowdown",), default=False),
        Dcgm("DCGM_FI_DEV_SHUTDOWN_TEMP", 1, ("shutdown",), default=False),
    ), detail=("shutdown",),
)  # fmt: skip
GPU_TEMPERATURE_MARGIN = _row(
    "gpu_temperature_margin_celsius", GAUGE, "celsius", GPU,
    "Thermal headroom: degrees left before the hottest sensor slows the GPU down.",
)  # fmt: skip
GPU_POWER = _row(
    "gpu_power_watts", GAUGE, "watts", GPU, "Board power as the driver reports it (1 s mean since Ampere).",
    dcgm=(Dcgm("DCGM_FI_DEV_POWER_USAGE"),),
    few=True,
)  # fmt: skip
GPU_POWER_INSTANT = _row(
    "gpu_power_instant_watts",
    GAUGE,
    "watts",
    GPU,
    "Board power at the moment of reading.",
    detail=True,
    unread=_SUSPECT,
)
GPU_POWER_LIMIT = _row(
    "gpu_power_limit_watts", GAUGE, "watts", GPU, "Power limit that the driver enforces now.",
    dcgm=(Dcgm("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", default=False),),
    few=True,
)  # fmt: skip
GPU_POWER_LIMIT_BOUND = _row(
    "gpu_power_limit_bound_watts", GAUGE, "watts", (*GPU, "bound"),
    "Bounds of the power limit, its default, and the requested value.", ("min", "max", "default", "requested"),
    detail=True,
    unread=_SUSPECT,
)  # fmt: skip
GPU_ENERGY = _row(
    "gpu_energy_joules_total", COUNTER, "joules", GPU,
    "Energy used since the driver was loaded.",
    dcgm=(Dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1000),),
    few=True,
)  # fmt: skip
GPU_CLOCK = _row(
    "gpu_clock_hertz", GAUGE, "hertz", (*GPU, "domain"), "Current clock.", ("sm", "memory"),
    dcgm=(Dcgm("DCGM_FI_DEV_SM_CLOCK", 1e-6, ("sm",)), Dcgm("DCGM_FI_DEV_MEM_CLOCK", 1e-6, ("memory",))),
    detail=("memory",),
)  # fmt: skip
GPU_CLOCK_MAX = _row(
    "gpu_clock_max_hertz", GAUGE, "hertz", (*GPU, "domain"), "Highest clock that the device allows.", ("sm", "memory"),
    dcgm=(
        Dcgm("DCGM_FI_DEV_MAX_SM_CLOCK", 1e-6, ("sm",), default=False),
        Dcgm("DCGM_FI_DEV_MAX_MEM_CLOCK", 1e-6, ("memory",), default=False),
    ), detail=True,
    unread=_SUSPECT,
)  # fmt: skip
GPU_CLOCK_EVENT = _row(
    "gpu_clock_event_active", GAUGE, "", (*GPU, "reason"),
    "1 while the driver holds clocks down for this reason.", CLOCK_EVENT_REASONS,
    detail=("gpu_idle", "applications_clocks_setting", "hw_slowdown", "sync_boost", "display_clock_setting",
            "board_limit", "reliability"),
    few=True, normal=0,
)  # fmt: skip
GPU_CLOCK_EVENT_SECONDS = _row(
    "gpu_clock_event_seconds_total", COUNTER, "seconds", (*GPU, "reason"),
    "Time for which the driver held clocks down for this reason; on older drivers, `thermal` is any kind of heat.",
    ("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "thermal", "sync_boost",
     "board_limit", "low_utilization", "reliability"),
    dcgm=(
        Dcgm("DCGM_FI_DEV_POWER_VIOLATION", _NANO, ("sw_power_cap",), default=False),
        Dcgm("DCGM_FI_DEV_THERMAL_VIOLATION", _NANO, ("thermal",), default=False),
        Dcgm("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", _NANO, ("sync_boost",), default=False),
        Dcgm("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", _NANO, ("board_limit",), default=False),
        Dcgm("DCGM_FI_DEV_LOW_UTIL_VIOLATION", _NANO, ("low_utilization",), default=False),
        Dcgm("DCGM_FI_DEV_RELIABILITY_VIOLATION", _NANO, ("reliability",), default=False),
    ), detail=("sync_boost", "board_limit", "low_utilization", "reliability"),
)  # fmt: skip
GPU_PERFORMANCE_STATE = _row(
    "gpu_performance_state",
    GAUGE,
    "",
    GPU,
    "Performance state: 0 is the fastest, 15 the slowest.",
    detail=True,
    unread=_SUSPECT,
)
GPU_MODE = _row(
    "gpu_mode_enabled", GAUGE, "", (*GPU, "mode"), "1 if this mode of the GPU is enabled.",
    ("persistence", "ecc", "mig"), detail=True,
    unread=_SUSPECT,
)  # fmt: skip

# Memory errors and repairs.
GPU_ECC_ERRORS = _row(
    "gpu_ecc_errors_total", COUNTER, "", (*GPU, "error", "scope"),
    "ECC errors; volatile: since the driver was loaded, aggregate: over the device's lifetime.",
    dcgm=(
        Dcgm("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1, ("corrected", "volatile"), default=False),
        Dcgm("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1, ("uncorrected", "volatile"), default=False),
        Dcgm("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 1, ("corrected", "aggregate"), default=False),
        Dcgm("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 1, ("uncorrected", "aggregate"), default=False),
    ), vocabulary=("volatile", "aggregate"), detail=("aggregate",),
    few=True, normal=0,
)  # fmt: skip
GPU_ECC_LOCATION_ERRORS = _row(
    "gpu_ecc_location_errors_total", COUNTER, "", (*GPU, "error", "scope", "location"),
    "ECC errors by location in the chip or its memory; their sum is gpu_ecc_errors_total.", detail=True,
    unread=_SUSPECT,
)  # fmt: skip
GPU_SRAM_THRESHOLD = _row(
    "gpu_ecc_sram_threshold_exceeded", GAUGE, "", GPU,
    "1 once the SRAM had too many uncorrectable errors: return the board.",
    few=True, normal=0,
)  # fmt: skip
GPU_REMAPPED_ROWS = _row(
    "gpu_remapped_rows_total", COUNTER, "", (*GPU, "error"),
    "Memory rows replaced by spare ones over the device's lifetime.", ("corrected", "uncorrected"),
    dcgm=(
        Dcgm("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1, ("corrected",)),
        Dcgm("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1, ("uncorrected",)),
    ), detail=("corrected",),
)  # fmt: skip
GPU_ROW_REMAP_PENDING = _row(
    "gpu_row_remap_pending", GAUGE, "", GPU, "1 while a row waits to be replaced at the next reset.",
    dcgm=(Dcgm("DCGM_FI_DEV_ROW_REMAP_PENDING", default=False),),
    few=True, normal=0,
)  # fmt: skip
GPU_ROW_REMAP_FAILED = _row(
    "gpu_row_remap_failed", GAUGE, "", GPU, "1 once a row could not be replaced: return the board.",
    dcgm=(Dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE"),),
    few=True, normal=0,
)  # fmt: skip
GPU_ROW_REMAP_BANKS = _row(
    "gpu_row_remap_banks", GAUGE, "", (*GPU, "spare"), "Memory banks by how many spare rows they have left.",
    ("max", "high", "partial", "low", "none"), detail=True,
    unread=_SUSPECT,
)  # fmt: skip
GPU_RETIRED_PAGES = _row(
    "gpu_retired_pages_total", COUNTER, "", (*GPU, "error"),
    "Memory pages retired over the device's lifetime, on GPUs before Ampere.", ("corrected", "uncorrected"),
    dcgm=(
        Dcgm("DCGM_FI_DEV_RETIRED_SBE", 1, ("corrected",), default=False),
        Dcgm("DCGM_FI_DEV_RETIRED_DBE", 1, ("uncorrected",), default=False),
    ),
)  # fmt: skip
GPU_RETIREMENT_PENDING = _row(
    "gpu_page_retirement_pending", GAUGE, "", GPU, "1 while a page waits to be retired at the next reset.",
    dcgm=(Dcgm("DCGM_FI_DEV_RETIRED_PENDING", default=False),),
    few=True, normal=0,
)  # fmt: skip
GPU_RECOVERY_ACTION = _row(
    "gpu_recovery_action", GAUGE, "", (*GPU, "action"),
    "1 for the recovery action that the driver requests.", vocabulary=RECOVERY_ACTIONS,
    few=True, normal="none",
)  # fmt: skip
GPU_XID_ERRORS = _row(
    "gpu_xid_errors_total", COUNTER, "", (*GPU, "xid"),
    "Xid errors from NVML events and the kernel log; a burst counts once.",
    few=True,
)  # fmt: skip
GPU_XID_NONFATAL = _row(
    "gpu_xid_nonfatal_total", COUNTER, "", (*GPU, "xid"),
    "Xid errors called nonfatal by the driver or injected for a test; not in gpu_xid_errors_total.",
)  # fmt: skip
GPU_XID_TIMESTAMP = _row(
    "gpu_xid_timestamp_seconds", GAUGE, "seconds", (*GPU, "xid"),
    "Unix time of the last Xid with this number.",
    few=True,
)  # fmt: skip
GPU_XID_INFO = _row(
    "gpu_xid_info", INFO, "", (*GPU, "xid", "action", "meaning"),
    "Meaning of an Xid that this GPU had, and the action to take.",
    few=True,
)  # fmt: skip

# Links.
GPU_PCIE_GENERATION = _row(
    "gpu_pcie_link_generation", GAUGE, "", GPU, "Current PCIe generation; an idle GPU lowers it.",
    dcgm=(Dcgm("DCGM_FI_DEV_PCIE_LINK_GEN", default=False),),
)  # fmt: skip
GPU_PCIE_GENERATION_MAX = _row(
    "gpu_pcie_link_generation_max", GAUGE, "", GPU, "Highest PCIe generation that both GPU and slot support.",
    dcgm=(Dcgm("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", default=False),),
)  # fmt: skip
GPU_PCIE_WIDTH = _row(
    "gpu_pcie_link_width", GAUGE, "", GPU, "PCIe lanes in use.",
    dcgm=(Dcgm("DCGM_FI_DEV_PCIE_LINK_WIDTH", default=False),),
)  # fmt: skip
GPU_PCIE_WIDTH_MAX = _row(
    "gpu_pcie_link_width_max", GAUGE, "", GPU, "PCIe lanes that both GPU and slot support.",
    dcgm=(Dcgm("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", default=False),),
)  # fmt: skip
GPU_PCIE_REPLAYS = _row(
    "gpu_pcie_replays_total", COUNTER, "", GPU, "PCIe packets sent again after a transmission error.",
    dcgm=(Dcgm("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),),
)  # fmt: skip
GPU_PCIE_ERRORS = _row(
    "gpu_pcie_errors_total", COUNTER, "", (*GPU, "error"), "Errors on the PCIe link.",
    ("correctable", "nak_received", "receiver", "bad_tlp", "nak_sent", "bad_dllp", "non_fatal", "fatal",
     "unsupported_request", "lcrc", "lane"), detail=True,
)  # fmt: skip
GPU_PCIE_BYTES = _row(
    "gpu_pcie_bytes_total", COUNTER, "bytes", (*GPU, "direction"), "Bytes over PCIe, as seen from the GPU.",
    ("transmit", "receive"), detail=True,
    unread=_TUNING,
)  # fmt: skip
GPU_PCIE_RATE = _row(
    "gpu_pcie_rate_bytes_per_second", GAUGE, "bytes_per_second", (*GPU, "direction"),
    "Sampled rate over PCIe, as seen from the GPU.", ("transmit", "receive"),
    dcgm=(Dcgm("DCGM_FI_PROF_PCIE_TX_BYTES", 1, ("transmit",)), Dcgm("DCGM_FI_PROF_PCIE_RX_BYTES", 1, ("receive",))),
    detail=True,
)  # fmt: skip
GPU_NVLINK_LINKS = _row("gpu_nvlink_links", GAUGE, "", GPU, "NVLink links of the GPU.")
GPU_NVLINK_LINKS_ACTIVE = _row(
    "gpu_nvlink_links_active", GAUGE, "", GPU, "NVLink links that are up, asleep or not.", few=True
)
GPU_NVLINK_BYTES = _row(
    "gpu_nvlink_bytes_total", COUNTER, "bytes", (*GPU, "direction"), "Payload bytes over all NVLink links.",
    ("transmit", "receive"),
    detail=("receive",),
)  # fmt: skip
GPU_NVLINK_ERRORS = _row(
    "gpu_nvlink_errors_total", COUNTER, "", (*GPU, "error"),
    "Errors on all NVLink links; effective: uncorrectable ones, as of NVLink 5.",
    ("crc_flit", "crc_data", "replay", "recovery", "recovery_failed", "effective"),
    dcgm=(
        Dcgm("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 1, ("crc_flit",), default=False),
        Dcgm("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 1, ("crc_data",), default=False),
        Dcgm("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 1, ("replay",), default=False),
        Dcgm("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1, ("recovery",), default=False),
    ), detail=("crc_data",),
)  # fmt: skip
GPU_NVLINK_RATE = _row(
    "gpu_nvlink_rate_bytes_per_second", GAUGE, "bytes_per_second", (*GPU, "direction"),
    "Sampled rate over all NVLink links.", ("transmit", "receive"), detail=True,
    unread=_TUNING,
)  # fmt: skip
GPU_NVLINK_LINK_ACTIVE = _row(
    "gpu_nvlink_link_active",
    GAUGE,
    "",
    (*GPU, "link"),
    "1 if this NVLink link is up, asleep or not.",
    detail=True,
    unread=_SUSPECT,
)
GPU_NVLINK_LINK_ERRORS = _row(
    "gpu_nvlink_link_errors_total", COUNTER, "", (*GPU, "link", "error"), "Errors on one NVLink link.", detail=True
)
GPU_NVLINK_LINK_BYTES = _row(
    "gpu_nvlink_link_bytes_total", COUNTER, "bytes", (*GPU, "link", "direction"),
    "Payload bytes over one NVLink link.", detail=True,
    unread=_SUSPECT,
)  # fmt: skip
GPU_FABRIC_READY = _row(
    "gpu_fabric_ready", GAUGE, "", GPU,
    "1 once the GPU has joined its NVLink fabric, otherwise 0.",
    few=True, normal=1,
)  # fmt: skip
FABRIC_FAULTS = ("bandwidth", "route_recovery", "route_unhealthy", "access_timeout", "configuration")
GPU_FABRIC_DEGRADED = _row(
    "gpu_fabric_degraded", GAUGE, "", (*GPU, "reason"),
    "1 while the driver reports a fault of the NVLink fabric that the GPU has joined.",
    vocabulary=FABRIC_FAULTS,
    few=True, normal=0,
)  # fmt: skip

# What the exporter concludes: present only while it finds something.
SLOWDOWN_CAUSES = ("thermal", "power_cap", "power_brake")
GPU_SLOWDOWN = _row(
    "gpu_slowdown_ratio", GAUGE, "ratio", (*GPU, "cause"),
    "Share of the last 2 minutes in which the GPU was throttled; absent below 5 %.", vocabulary=SLOWDOWN_CAUSES,
    few=True,
)  # fmt: skip
GPU_NVLINKS_DOWN = _row(
    "gpu_nvlink_links_down", GAUGE, "", GPU,
    "NVLink links that have been down for 2 minutes; they were up within a day, or are up on the node's median GPU.",
    few=True,
)  # fmt: skip
GPU_NVLINK_ERROR_RATE = _row(
    "gpu_nvlink_errors_per_second", GAUGE, "", (*GPU, "error"),
    "NVLink errors per second over 5 minutes, if there are more than usual.", vocabulary=GPU_NVLINK_ERRORS.values,
    few=True,
)  # fmt: skip
GPU_PCIE_SPEED = _row(
    "gpu_pcie_speed_ratio", GAUGE, "ratio", GPU,
    "Share of the PCIe link's speed left for 2 minutes, by lanes or, on a busy GPU, by generation; absent at 1.",
    few=True,
)  # fmt: skip
GPU_PCIE_REPLAY_RATE = _row(
    "gpu_pcie_replays_per_second", GAUGE, "", GPU,
    "PCIe packets sent again per second over 5 minutes, if the link may not resend so many.",
    few=True,
)  # fmt: skip
GPU_MEMORY_FULL = _row(
    "gpu_memory_full_ratio", GAUGE, "ratio", GPU,
    "Share of device memory in use for all of the last minute, if hardly any is left.",
    few=True,
)  # fmt: skip

# Peak performance.
GPU_PEAK_FLOPS = _row(
    "gpu_peak_flops", GAUGE, "", (*GPU, "dtype"),
    "Dense peak FLOP/s published by the vendor, without sparsity.",
    detail=True,
)  # fmt: skip
GPU_ACHIEVABLE_FLOPS = _row(
    "gpu_achievable_flops", GAUGE, "", (*GPU, "dtype"),
    "Highest matrix-multiplication FLOP/s publicly measured on this device.",
    detail=True,
)  # fmt: skip

# MIG instances: families of their own, so that a sum over GPUs never counts an instance twice.
MIG_INFO = _row(
    "gpu_mig_info", INFO, "", (*_MIG, "mig_uuid", "profile"),
    "A MIG instance, named by GPU instance and compute instance, such as 1/0; always 1.",
)  # fmt: skip
MIG_MEMORY_TOTAL = _row("gpu_mig_memory_total_bytes", GAUGE, "bytes", _MIG, "Device memory of a MIG instance.")
MIG_MEMORY_USED = _row("gpu_mig_memory_used_bytes", GAUGE, "bytes", _MIG, "Device memory in use in a MIG instance.")
MIG_SM_ACTIVE = _row(
    "gpu_mig_sm_active_ratio",
    GAUGE,
    "ratio",
    _MIG,
    "Sampled share of the instance's SM cycles with a warp on the SM.",
)
MIG_TENSOR_ACTIVE = _row(
    "gpu_mig_tensor_active_ratio",
    GAUGE,
    "ratio",
    _MIG,
    "Sampled share of cycles in which the instance's tensor cores worked.",
)
MIG_DRAM_ACTIVE = _row(
    "gpu_mig_dram_active_ratio",
    GAUGE,
    "ratio",
    _MIG,
    "Sampled share of the instance's memory bandwidth in use.",
)
