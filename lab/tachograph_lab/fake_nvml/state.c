/* What a healthy, busy H100 80GB HBM3 says, and how its counters grow. */
#define _GNU_SOURCE
#include "state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LEAST_STEP 2000000         /* ns between two counts, so that rounding does not add up */
#define MEBIBYTE 1048576.0

struct state *state;
int is_steered;

static uint64_t nanoseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

double now(void)
{
    return (double)nanoseconds() * 1e-9;
}

void rest(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&time, NULL);
}

unsigned index_of(device gpu)
{
    return (unsigned)(gpu - state->gpus);
}

double swing(device gpu, double base, double share)
{
    if (!state->live)
        return base;
    return base * (1.0 + share * sin(now() * 2.0 * M_PI / (61.0 + 7.0 * index_of(gpu))));
}

uint32_t around(device gpu, uint32_t base, double share)
{
    return (uint32_t)(swing(gpu, base, share) + 0.5);
}

uint32_t power_now(device gpu)
{
    return around(gpu, gpu->power, 0.08);
}

/* Cycles of each pipe: the GPM metric that gives its share of all SM cycles, in percent; 0: all of them. */
static const uint32_t shares[SINCE_BOOT] = {0, 2, 5, 8, 7, 9, 6, 0, 0, 4, 11, 12, 13};

/* Time in each clock event: the bit of the clock event reasons. */
static const uint64_t bits[EVENT_TIMES] = {0x4, 0x10, 0, 0, 0, 0x20, 0x40, 0x80};

static void add(uint64_t *counter, double rate, double seconds)
{
    if (rate > 0)                  /* not so for NaN */
        __atomic_fetch_add(counter, (uint64_t)(rate * seconds + 0.5), __ATOMIC_RELAXED);
}

static double gpm_or_zero(device gpu, uint32_t metric)
{
    double value;
    return gpm_value(gpu, 0, metric, &value) ? 0 : value;
}

static void count(device gpu, double seconds)
{
    double cycles = gpu->clocks[1] * 1e6 * gpu->multiprocessors;
    add(&gpu->energy, power_now(gpu), seconds);
    for (unsigned i = 0; i < SINCE_BOOT; i++)
        if (i != PCIE_TX_BYTES && i != PCIE_RX_BYTES)
            add(&gpu->since_boot[i], shares[i] ? cycles * gpm_or_zero(gpu, shares[i]) / 100 : cycles, seconds);
    add(&gpu->since_boot[PCIE_TX_BYTES], gpm_or_zero(gpu, 20) * MEBIBYTE, seconds);
    add(&gpu->since_boot[PCIE_RX_BYTES], gpm_or_zero(gpu, 21) * MEBIBYTE, seconds);
    for (unsigned i = 0; i < 2; i++)
        add(&gpu->nvlink_bytes[i], gpm_or_zero(gpu, 60 + i) * MEBIBYTE, seconds);
    for (unsigned i = 0; i < EVENT_TIMES; i++)
        add(&gpu->event_time[i], gpu->clock_events & bits[i] ? 1e9 : i == SW_POWER_CAP ? 2e7 : 0, seconds);
}

void advance(device gpu)
{
    if (!state->live)
        return;
    uint64_t time = nanoseconds();
    uint64_t before = __atomic_load_n(&gpu->counted_until, __ATOMIC_RELAXED);
    if (before && time < before + LEAST_STEP)
        return;
    /* Only one of several threads or processes wins the step, so that no time is counted twice. */
    if (__atomic_compare_exchange_n(&gpu->counted_until, &before, time, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) && before)
        count(gpu, (double)(time - before) * 1e-9);
}

const struct setting *setting_of(const struct setting *settings, uint32_t id, uint32_t scope)
{
    for (unsigned i = 0; i < SETTINGS && settings[i].id; i++)
        if (settings[i].id == id && settings[i].scope == scope)
            return &settings[i];
    return NULL;
}

static void fill_gpu(struct gpu *gpu, unsigned index)
{
    snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-fa4e0000-0000-4000-8000-%012x", index);
    strcpy(gpu->name, "NVIDIA H100 80GB HBM3");
    snprintf(gpu->serial, sizeof gpu->serial, "16500000000%02u", index);
    strcpy(gpu->vbios, "96.00.89.00.01");
    gpu->memory_total = 85520809984;   /* 81,559 MiB, as nvidia-smi shows an H100 */
    gpu->memory_used = 73014444032;
    gpu->memory_reserved = 553648128;
    gpu->bar1[0] = 137438953472;
    gpu->bar1[1] = 6291456;
    gpu->event_types = 0x1 | 0x2 | 0x8 | 0x10;
    gpu->errors[CALL_fan] = gpu->errors[CALL_retired_pages] = NOT_SUPPORTED;
    gpu->utilization[0] = 96;
    gpu->utilization[1] = 48;
    gpu->temperature[0] = 58 + index % 4;
    gpu->temperature[1] = 70 + index % 4;
    memcpy(gpu->thresholds, (uint32_t[]){92, 89, 95, 87}, sizeof gpu->thresholds);
    gpu->power = 620000 + 4000 * index;
    gpu->power_limit = 700000;
    memcpy(gpu->power_limits, (uint32_t[]){200000, 700000, 700000}, sizeof gpu->power_limits);
    memcpy(gpu->clocks, (uint32_t[]){1755, 1755, 2619, 1545}, sizeof gpu->clocks);
    memcpy(gpu->max_clocks, (uint32_t[]){1980, 1980, 2619, 1545}, sizeof gpu->max_clocks);
    gpu->multiprocessors = 132;
    gpu->persistence = gpu->ecc_mode = gpu->gpm = 1;
    gpu->banks[0] = 2560;
    gpu->pcie[0] = gpu->pcie_max[0] = 5;
    gpu->pcie[1] = gpu->pcie_max[1] = 16;
    gpu->links = MAX_LINKS;
    gpu->fabric[0] = 3;            /* completed */
    gpu->fabric[3] = 0x2;          /* its bandwidth is not degraded */
}

void fill_default(struct state *made, double seconds)
{
    memset(made, 0, sizeof *made);
    made->size = sizeof *made;
    made->count = 8;
    made->cuda_version = 13000;
    strcpy(made->driver_version, "580.95.05");
    state = made;
    for (unsigned i = 0; i < MAX_GPUS; i++) {
        fill_gpu(&made->gpus[i], i);
        count(&made->gpus[i], seconds);
    }
    made->live = 1;
}
