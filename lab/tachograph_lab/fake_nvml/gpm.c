/* GPM: samples, and the metrics between two of them: what a test set, else what a busy H100 would say. */
#include "state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layouts.h"

/* Sampled metrics that do not stand at 0, in GPM's units: percent, MiB/s. */
static const struct {
    uint32_t metric;
    double value;
} sampled[] = {
    {1, 97}, {2, 90}, {3, 35}, {4, 12}, {5, 45}, {7, 45}, {10, 50}, {12, 8}, {13, 4},
    {20, 400}, {21, 600}, {60, 60000}, {61, 60000},
};

static double made_up(device gpu, uint32_t metric)
{
    if (metric >= 62 && metric <= 97)
        return made_up(gpu, 60 + metric % 2) / MAX_LINKS;
    for (unsigned i = 0; i < sizeof sampled / sizeof *sampled; i++)
        if (sampled[i].metric == metric)
            return swing(gpu, sampled[i].value, 0.03);
    return 0;
}

static int within(uint32_t metric, uint32_t first, uint32_t count)
{
    return metric >= first && metric < first + count;
}

int gpm_value(device gpu, uint32_t instance, uint32_t metric, double *value)
{
    const struct setting *set = setting_of(gpu->gpm_settings, metric, instance);
    if (set) {
        *value = set->value.real;
        return (int)set->error;
    }
    /* 1-13 pipes, 20-21 PCIe, 30-36 NVDEC, 40-46 NVJPG, 50 OFA, 60-97 NVLink */
    if (!within(metric, 1, 13) && !within(metric, 20, 2) && !within(metric, 30, 7) && !within(metric, 40, 7) &&
        metric != 50 && !within(metric, 60, 2 + 2 * gpu->links))
        return NOT_SUPPORTED;
    *value = made_up(gpu, metric);
    return SUCCESS;
}

struct sample {
    device gpu;                    /* NULL: not taken yet */
    uint32_t instance;
    double share;                  /* of the GPU's multiprocessors */
    double since_boot[SINCE_BOOT];
    double nvlink_bytes[2];
};


int nvmlGpmQueryDeviceSupport(device gpu, struct gpm_support *support)
{
    int error = enter(gpu, CALL_gpm_support);
    if (error || support->version != 1)
        return error ? error : ARGUMENT_VERSION_MISMATCH;
    support->supported = gpu->gpm;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(struct sample **sample)
{
    *sample = calloc(1, sizeof **sample);
    return *sample ? SUCCESS : UNKNOWN;
}

int nvmlGpmSampleFree(struct sample *sample)
{
    free(sample);
    return SUCCESS;
}

static int take(device gpu, uint32_t instance, double share, struct sample *sample)
{
    if (!gpu->gpm)
        return NOT_SUPPORTED;
    advance(gpu);
    *sample = (struct sample){.gpu = gpu, .instance = instance, .share = share};
    for (unsigned i = 0; i < SINCE_BOOT; i++)
        sample->since_boot[i] = (double)__atomic_load_n(&gpu->since_boot[i], __ATOMIC_RELAXED) * share;
    for (unsigned i = 0; i < 2; i++)
        sample->nvlink_bytes[i] = (double)__atomic_load_n(&gpu->nvlink_bytes[i], __ATOMIC_RELAXED);
    return SUCCESS;
}

int nvmlGpmSampleGet(device gpu, struct sample *sample)
{
    int error = enter(gpu, CALL_gpm_sample);
    return error ? error : take(gpu, 0, 1, sample);
}

int nvmlGpmMigSampleGet(device gpu, unsigned instance, struct sample *sample)
{
    int error = enter(gpu, CALL_gpm_sample);
    if (error)
        return error;
    for (unsigned i = 0; i < MAX_MIGS; i++)
        if (*gpu->migs[i].profile && gpu->migs[i].gpu_instance == instance)
            return take(gpu, instance, (double)gpu->migs[i].multiprocessors / gpu->multiprocessors, sample);
    return gpu->mig ? NOT_FOUND : NOT_SUPPORTED;
}

static int metric_of(const struct sample *sample, uint32_t metric, double *value)
{
    device gpu = sample->gpu;
    if (metric < GPM_IDS)
        __atomic_fetch_add(&gpu->gpm_calls[metric], 1, __ATOMIC_RELAXED);
    if (!setting_of(gpu->gpm_settings, metric, sample->instance)) {
        if (within(metric, SINCE_BOOT_FIRST, SINCE_BOOT)) {
            *value = sample->since_boot[metric - SINCE_BOOT_FIRST];
            return SUCCESS;
        }
        if (within(metric, 261, 2 * gpu->links)) {
            *value = floor(sample->nvlink_bytes[(metric - 261) % 2] / gpu->links);
            return SUCCESS;
        }
    }
    return gpm_value(gpu, sample->instance, metric, value);
}

int nvmlGpmMetricsGet(struct gpm_metrics *request)
{
    if (!is_initialized())
        return UNINITIALIZED;
    if (request->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    const struct sample *first = request->first, *second = request->second;
    if (!first || !second || first == second || !first->gpu || first->gpu != second->gpu ||
        first->instance != second->instance || !request->count || request->count > GPM_IDS)
        return INVALID_ARGUMENT;
    __atomic_fetch_add(&second->gpu->calls[CALL_gpm_metrics], 1, __ATOMIC_RELAXED);
    if (second->gpu->errors[CALL_gpm_metrics])
        return (int)second->gpu->errors[CALL_gpm_metrics];
    for (unsigned i = 0; i < request->count; i++) {
        struct gpm_metric *metric = &request->metrics[i];
        metric->value = NAN;
        metric->error = metric_of(second, metric->id, &metric->value);
        memset(metric->words, 0, sizeof metric->words);
    }
    return SUCCESS;
}
