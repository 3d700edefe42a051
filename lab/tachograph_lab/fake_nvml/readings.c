/* The calls that read one number, or a few, from a GPU. */
#include <stddef.h>
#include <string.h>

#include "layouts.h"
#include "state.h"

#define PCIE_WINDOW 0.02           /* seconds for which the driver watches the link before it answers */

#define GETTER(symbol, call, type, expression)                                                                         \
    int symbol(device gpu, type *value)                                                                                \
    {                                                                                                                  \
        int error = enter(gpu, CALL_##call);                                                                           \
        if (!error)                                                                                                    \
            *value = (expression);                                                                                     \
        return error;                                                                                                  \
    }
#define PAIR(symbol, call, first_expression, second_expression)                                                        \
    int symbol(device gpu, unsigned *first, unsigned *second)                                                          \
    {                                                                                                                  \
        int error = enter(gpu, CALL_##call);                                                                           \
        if (error)                                                                                                     \
            return error;                                                                                              \
        *first = (first_expression);                                                                                   \
        *second = (second_expression);                                                                                 \
        return SUCCESS;                                                                                                \
    }
#define CHOICE(symbol, call, choices, expression)                                                                      \
    int symbol(device gpu, unsigned choice, unsigned *value)                                                           \
    {                                                                                                                  \
        int error = enter(gpu, CALL_##call);                                                                           \
        if (error || choice >= (choices))                                                                              \
            return error ? error : NOT_SUPPORTED;                                                                      \
        *value = (expression);                                                                                         \
        return SUCCESS;                                                                                                \
    }
#define TEXT(symbol, call, text)                                                                                       \
    int symbol(device gpu, char *value, unsigned length)                                                               \
    {                                                                                                                  \
        int error = enter(gpu, CALL_##call);                                                                           \
        return error ? error : copy(value, length, text);                                                              \
    }
#define ABSENT(symbol)                                                                                                 \
    int symbol(device gpu, void *value)                                                                                \
    {                                                                                                                  \
        (void)value;                                                                                                   \
        int error = enter(gpu, CALL_other);                                                                            \
        return error ? error : NOT_SUPPORTED;                                                                          \
    }

TEXT(nvmlDeviceGetSerial, serial, gpu->serial)
TEXT(nvmlDeviceGetVbiosVersion, vbios, gpu->vbios)
GETTER(nvmlDeviceGetMinorNumber, minor, unsigned, index_of(gpu))
GETTER(nvmlDeviceGetIndex, other, unsigned, listed_index(gpu))

static uint64_t used_now(device gpu)
{
    uint64_t freed = state->live ? (uint64_t)around(gpu, 512, 0.5) << 20 : 0;
    return gpu->memory_used - (freed < gpu->memory_used ? freed : 0);
}

int nvmlDeviceGetMemoryInfo(device handle, struct memory *memory)
{
    struct mig *mig;
    int error = enter_either(handle, CALL_memory, &mig);
    if (error)
        return error;
    uint64_t total = mig ? mig->memory_total : handle->memory_total;
    uint64_t used = mig ? mig->memory_used : used_now(handle) + handle->memory_reserved;
    *memory = (struct memory){total, total - used, used};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device handle, struct memory_v2 *memory)
{
    struct mig *mig;
    int error = enter_either(handle, CALL_memory_v2, &mig);
    if (error)
        return error;
    if (memory->version != VERSION(*memory, 2))
        return ARGUMENT_VERSION_MISMATCH;
    memory->total = mig ? mig->memory_total : handle->memory_total;
    memory->reserved = mig ? 0 : handle->memory_reserved;
    memory->used = mig ? mig->memory_used : used_now(handle);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetBAR1MemoryInfo(device gpu, struct bar1 *memory)
{
    int error = enter(gpu, CALL_bar1);
    if (!error)
        *memory = (struct bar1){gpu->bar1[0], gpu->bar1[0] - gpu->bar1[1], gpu->bar1[1]};
    return error;
}

int nvmlDeviceGetUtilizationRates(device gpu, struct utilization *utilization)
{
    int error = enter(gpu, CALL_utilization);
    if (error || gpu->mig)
        return error ? error : NOT_SUPPORTED;
    utilization->gpu = around(gpu, gpu->utilization[0], 0.03);
    utilization->memory = around(gpu, gpu->utilization[1], 0.1);
    return SUCCESS;
}

PAIR(nvmlDeviceGetEncoderUtilization, codec, gpu->codec[0], 167000)
PAIR(nvmlDeviceGetDecoderUtilization, codec, gpu->codec[1], 167000)
CHOICE(nvmlDeviceGetClockInfo, clock, 4, around(gpu, gpu->clocks[choice], choice == 2 ? 0 : 0.02))
CHOICE(nvmlDeviceGetMaxClockInfo, max_clock, 4, gpu->max_clocks[choice])
GETTER(nvmlDeviceGetPowerUsage, power, unsigned, power_now(gpu))
GETTER(nvmlDeviceGetEnforcedPowerLimit, power_limit, unsigned, gpu->power_limit)
GETTER(nvmlDeviceGetPowerManagementLimit, power_limit, unsigned, gpu->power_limit)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, power_limits, unsigned, gpu->power_limits[2])
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, power_limits, gpu->power_limits[0], gpu->power_limits[1])
GETTER(nvmlDeviceGetTotalEnergyConsumption, energy, unsigned long long, (advance(gpu), gpu->energy))
CHOICE(nvmlDeviceGetTemperature, temperature, 1, around(gpu, gpu->temperature[0], 0.05))
CHOICE(nvmlDeviceGetTemperatureThreshold, threshold, 4, gpu->thresholds[choice])
CHOICE(nvmlDeviceGetFanSpeed_v2, fan, 1, 0)
GETTER(nvmlDeviceGetFanSpeed, fan, unsigned, 0)
GETTER(nvmlDeviceGetNumFans, fan, unsigned, 0)
GETTER(nvmlDeviceGetCurrentClocksEventReasons, clock_events, unsigned long long, gpu->clock_events)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, clock_events, unsigned long long, gpu->clock_events)
GETTER(nvmlDeviceGetPersistenceMode, persistence, unsigned, gpu->persistence)
GETTER(nvmlDeviceGetPerformanceState, performance, unsigned, gpu->performance_state)
GETTER(nvmlDeviceGetPowerState, performance, unsigned, gpu->performance_state)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, pcie, unsigned, gpu->pcie[0])
GETTER(nvmlDeviceGetCurrPcieLinkWidth, pcie, unsigned, gpu->pcie[1])
GETTER(nvmlDeviceGetPcieReplayCounter, pcie, unsigned, gpu->pcie[2])
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, pcie_max, unsigned, gpu->pcie_max[0])
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_max, unsigned, gpu->pcie_max[0])
GETTER(nvmlDeviceGetMaxPcieLinkWidth, pcie_max, unsigned, gpu->pcie_max[1])
GETTER(nvmlDeviceGetRetiredPagesPendingStatus, retired_pages, unsigned, gpu->retired[2])
GETTER(nvmlDeviceGetSupportedEventTypes, event_types, unsigned long long, gpu->event_types)
PAIR(nvmlDeviceGetEccMode, ecc_mode, gpu->ecc_mode, gpu->ecc_mode)
PAIR(nvmlDeviceGetMigMode, mig, gpu->mig, gpu->mig)
GETTER(nvmlDeviceGetComputeMode, other, unsigned, 0)
ABSENT(nvmlDeviceGetDisplayMode)
ABSENT(nvmlDeviceGetDisplayActive)
ABSENT(nvmlDeviceGetConfComputeMemSizeInfo)
ABSENT(nvmlDeviceGetRunningProcessDetailList)   /* where it is missing, nvitop expects a process struct of its own */

int nvmlDeviceGetTemperatureV(device gpu, struct temperature *reading)
{
    unsigned value;
    if (reading->version != VERSION(*reading, 1))
        return ARGUMENT_VERSION_MISMATCH;
    int error = nvmlDeviceGetTemperature(gpu, reading->sensor, &value);
    if (!error)
        reading->temperature = (int)value;
    return error;
}

int nvmlDeviceGetMarginTemperature(device gpu, struct margin *reading)
{
    int error = enter(gpu, CALL_margin);
    if (error || reading->version != VERSION(*reading, 1))
        return error ? error : ARGUMENT_VERSION_MISMATCH;
    reading->margin = (int)gpu->thresholds[3] - (int)around(gpu, gpu->temperature[0], 0.05);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(device handle, int *major, int *minor)
{
    struct mig *mig;
    *major = 9;
    *minor = 0;
    return enter_either(handle, CALL_other, &mig);
}

int nvmlDeviceGetPcieThroughput(device gpu, unsigned direction, unsigned *kibibytes)
{
    double rate;
    int error = enter(gpu, CALL_pcie_throughput);
    if (error || direction > 1)
        return error ? error : INVALID_ARGUMENT;
    rest(PCIE_WINDOW);
    error = gpm_value(gpu, 0, 20 + direction, &rate);
    *kibibytes = error ? 0 : (unsigned)(rate * 1024);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device gpu, unsigned error_type, unsigned counter, unsigned long long *count)
{
    int error = enter(gpu, CALL_ecc);
    if (error || error_type > 1 || counter > 1)
        return error ? error : INVALID_ARGUMENT;
    *count = gpu->ecc[error_type][counter];
    return SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(device gpu, unsigned error_type, unsigned counter, unsigned location,
                                    unsigned long long *count)
{
    *count = 0;
    return location == 2 ? nvmlDeviceGetTotalEccErrors(gpu, error_type, counter, count) : enter(gpu, CALL_ecc);
}

int nvmlDeviceGetSramEccErrorStatus(device gpu, struct sram_ecc *status)
{
    int error = enter(gpu, CALL_sram_ecc);
    if (error || status->version != VERSION(*status, 1))
        return error ? error : ARGUMENT_VERSION_MISMATCH;
    *status = (struct sram_ecc){.version = status->version, .threshold_exceeded = gpu->sram_threshold};
    return SUCCESS;
}

int nvmlDeviceGetRetiredPages_v2(device gpu, unsigned cause, unsigned *count, uint64_t *addresses, uint64_t *times)
{
    int error = enter(gpu, CALL_retired_pages);
    if (error || cause > 1)
        return error ? error : INVALID_ARGUMENT;
    unsigned room = *count;
    *count = gpu->retired[cause];
    if (*count && (room < *count || !addresses))
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) {
        addresses[i] = 0x1000 * (i + 1);
        if (times)
            times[i] = 0;
    }
    return SUCCESS;
}

int nvmlDeviceGetRetiredPages(device gpu, unsigned cause, unsigned *count, uint64_t *addresses)
{
    return nvmlDeviceGetRetiredPages_v2(gpu, cause, count, addresses, NULL);
}

int nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure)
{
    int error = enter(gpu, CALL_remapped_rows);
    if (error)
        return error;
    *corrected = gpu->remapped[0];
    *uncorrected = gpu->remapped[1];
    *pending = gpu->remapped[2];
    *failure = gpu->remapped[3];
    return SUCCESS;
}

int nvmlDeviceGetRowRemapperHistogram(device gpu, struct row_histogram *histogram)
{
    int error = enter(gpu, CALL_row_histogram);
    if (!error)
        memcpy(histogram->banks, gpu->banks, sizeof histogram->banks);
    return error;
}

static struct fabric fabric_of(device gpu)
{
    return (struct fabric){.status = (int)gpu->fabric[1], .clique = gpu->fabric[2], .state = gpu->fabric[0]};
}

int nvmlDeviceGetGpuFabricInfo(device gpu, struct fabric *info)
{
    int error = enter(gpu, CALL_fabric);
    if (!error)
        *info = fabric_of(gpu);
    return error;
}

int nvmlDeviceGetGpuFabricInfoV(device gpu, struct fabric_v2 *info)
{
    int error = enter(gpu, CALL_fabric);
    int third = info->version == VERSION(struct fabric_v3, 3);
    if (error || (!third && info->version != VERSION(*info, 2)))
        return error ? error : ARGUMENT_VERSION_MISMATCH;
    *info = (struct fabric_v2){info->version, fabric_of(gpu), gpu->fabric[3]};
    if (third)
        ((struct fabric_v3 *)(void *)info)->health_summary = 1 + ((gpu->fabric[3] & 3) == 1);
    return SUCCESS;
}

static unsigned processes_of(device gpu)
{
    unsigned count = 0;
    while (count < MAX_PROCESSES && gpu->process_ids[count])
        count++;
    return count;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device handle, unsigned *count, struct process *processes)
{
    struct mig *mig;
    int error = enter_either(handle, CALL_processes, &mig);
    unsigned room = *count;
    *count = error || mig ? 0 : processes_of(handle);
    if (error || room < *count)
        return error ? error : INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        processes[i] = (struct process){handle->process_ids[i], handle->process_memory, UINT32_MAX, UINT32_MAX};
    return SUCCESS;
}

static int no_processes(device handle, enum call call, unsigned *count)
{
    struct mig *mig;
    *count = 0;
    return enter_either(handle, call, &mig);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(device handle, unsigned *count, struct process *processes)
{
    (void)processes;
    return no_processes(handle, CALL_processes, count);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device handle, unsigned *count, struct process *processes)
{
    (void)processes;
    return no_processes(handle, CALL_mps_processes, count);
}

int nvmlDeviceGetProcessUtilization(device gpu, struct process_utilization *samples, unsigned *count,
                                    unsigned long long since)
{
    (void)since;
    int error = enter(gpu, CALL_process_utilization);
    unsigned room = *count;
    *count = error ? 0 : processes_of(gpu);
    if (error || room < *count)
        return error ? error : INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        samples[i] = (struct process_utilization){gpu->process_ids[i], (uint64_t)(now() * 1e6),
                                                  gpu->utilization[0] / *count, gpu->utilization[1] / *count, 0, 0};
    return SUCCESS;
}
