/* Field values: what a test set, else what a healthy H100 would say. */
#include "state.h"

#include <stddef.h>
#include <string.h>

#include "layouts.h"

enum { DOUBLE, UNSIGNED_INT, UNSIGNED_LONG, UNSIGNED_LONG_LONG, SIGNED_LONG_LONG, SIGNED_INT }; /* nvmlValueType_t */

#define ALL_LINKS UINT32_MAX

static uint64_t nothing(device gpu, uint32_t offset, uint32_t scope)
{
    (void)gpu, (void)offset, (void)scope;
    return 0;
}

#define VALUE(name, expression)                                                                                        \
    static uint64_t name(device gpu, uint32_t offset, uint32_t scope)                                                  \
    {                                                                                                                  \
        (void)gpu, (void)offset, (void)scope;                                                                          \
        return (uint64_t)(expression);                                                                                 \
    }
VALUE(ecc_mode, gpu->ecc_mode)
VALUE(ecc_total, gpu->ecc[offset % 2][offset / 2])
VALUE(ecc_device_volatile, gpu->ecc[offset][0])
VALUE(ecc_device_aggregate, gpu->ecc[offset][1])
VALUE(retired, gpu->retired[offset])
VALUE(power_cap_time, gpu->event_time[SW_POWER_CAP + offset])
VALUE(thermal_time, gpu->event_time[SW_THERMAL] + gpu->event_time[HW_THERMAL])
VALUE(other_event_time, gpu->event_time[SYNC_BOOST + offset])
VALUE(thermal_event_time, gpu->event_time[SW_THERMAL + offset])
VALUE(memory_temperature, around(gpu, gpu->temperature[1], 0.04))
VALUE(energy, gpu->energy)
VALUE(link_speed, 26562)
VALUE(link_count, gpu->links)
VALUE(link_state, 1)
VALUE(link_version, 6)             /* NVML_NVLINK_VERSION_4_0 */
VALUE(replays, gpu->pcie[2])
/* KiB: data out, data in, the same with protocol; one link or all of them */
VALUE(link_kibibytes, gpu->nvlink_bytes[(offset + 1) % 2] / 1024 * (offset < 2 ? 100 : 112) / 100 /
                          (scope == ALL_LINKS || !gpu->links ? 1 : gpu->links))
VALUE(remapped, gpu->remapped[offset])
VALUE(power, power_now(gpu))
VALUE(power_bound, gpu->power_limits[offset])
VALUE(power_limit, gpu->power_limit)
VALUE(shutdown_limit, (int64_t)gpu->thresholds[3] - gpu->thresholds[0])
VALUE(slowdown_limit, (int64_t)gpu->thresholds[3] - gpu->thresholds[1])
VALUE(pcie_bytes, gpu->since_boot[PCIE_TX_BYTES + offset])
VALUE(recovery_action, gpu->recovery_action)

/* Fields that an H100 has, by id; `links`: the scope is a link or all of them. */
static const struct row {
    uint32_t first, last, type;
    enum call call;
    int links;
    uint64_t (*value)(device gpu, uint32_t offset, uint32_t scope);
} rows[] = {
    {1, 2, UNSIGNED_INT, CALL_ecc_mode, 0, ecc_mode},
    {3, 6, UNSIGNED_LONG_LONG, CALL_ecc, 0, ecc_total},
    {7, 10, UNSIGNED_LONG_LONG, CALL_ecc, 0, nothing},
    {11, 12, UNSIGNED_LONG_LONG, CALL_ecc, 0, ecc_device_volatile},
    {13, 21, UNSIGNED_LONG_LONG, CALL_ecc, 0, nothing},
    {22, 23, UNSIGNED_LONG_LONG, CALL_ecc, 0, ecc_device_aggregate},
    {24, 28, UNSIGNED_LONG_LONG, CALL_ecc, 0, nothing},
    {29, 31, UNSIGNED_LONG_LONG, CALL_retired_pages, 0, retired},
    {32, 59, UNSIGNED_LONG_LONG, CALL_nvlink_errors, 0, nothing},
    {74, 74, UNSIGNED_LONG_LONG, CALL_clock_event_time, 0, power_cap_time},
    {75, 75, UNSIGNED_LONG_LONG, CALL_clock_event_time, 0, thermal_time},
    {76, 79, UNSIGNED_LONG_LONG, CALL_clock_event_time, 0, other_event_time},
    {80, 81, UNSIGNED_LONG_LONG, CALL_clock_event_time, 0, nothing},
    {82, 82, UNSIGNED_INT, CALL_memory_temperature, 0, memory_temperature},
    {83, 83, UNSIGNED_LONG_LONG, CALL_energy, 0, energy},
    {84, 90, UNSIGNED_INT, CALL_nvlink, 0, link_speed},
    {91, 91, UNSIGNED_INT, CALL_nvlink, 0, link_count},
    {94, 94, UNSIGNED_INT, CALL_pcie, 0, replays},
    {95, 95, UNSIGNED_INT, CALL_pcie, 0, nothing},
    {96, 119, UNSIGNED_LONG_LONG, CALL_nvlink_errors, 0, nothing},
    {132, 137, UNSIGNED_INT, CALL_nvlink, 0, link_speed},
    {138, 141, UNSIGNED_LONG_LONG, CALL_nvlink_bytes, 1, link_kibibytes},
    {142, 145, UNSIGNED_INT, CALL_remapped_rows, 0, remapped},
    {147, 147, UNSIGNED_INT, CALL_nvlink, 0, link_count},
    {148, 160, UNSIGNED_LONG_LONG, CALL_nvlink_errors, 0, nothing},
    {161, 163, UNSIGNED_LONG_LONG, CALL_nvlink_errors, 1, nothing},
    {164, 164, UNSIGNED_INT, CALL_nvlink, 1, link_speed},
    {165, 165, UNSIGNED_INT, CALL_nvlink, 1, link_state},
    {166, 166, UNSIGNED_INT, CALL_nvlink, 1, link_version},
    {167, 167, UNSIGNED_INT, CALL_nvlink, 1, nothing},
    {169, 169, UNSIGNED_INT, CALL_pcie_errors, 0, nothing},
    {170, 170, UNSIGNED_INT, CALL_other, 0, nothing},
    {173, 183, UNSIGNED_INT, CALL_pcie_errors, 0, nothing},
    {185, 186, UNSIGNED_INT, CALL_power, 0, power},
    {187, 189, UNSIGNED_INT, CALL_power_limits, 0, power_bound},
    {190, 190, UNSIGNED_INT, CALL_power_limit, 0, power_limit},
    {191, 191, UNSIGNED_LONG_LONG, CALL_energy, 0, energy},
    {192, 192, UNSIGNED_INT, CALL_power_limit, 0, power_limit},
    {193, 193, SIGNED_INT, CALL_temperature_limits, 0, shutdown_limit},
    {194, 194, SIGNED_INT, CALL_temperature_limits, 0, slowdown_limit},
    {195, 196, SIGNED_INT, CALL_temperature_limits, 0, nothing},
    {197, 198, UNSIGNED_LONG_LONG, CALL_pcie_bytes, 0, pcie_bytes},
    {226, 227, UNSIGNED_INT, CALL_recovery_action, 0, nothing},
    {230, 230, UNSIGNED_INT, CALL_recovery_action, 0, recovery_action},
    {269, 271, UNSIGNED_LONG_LONG, CALL_clock_event_time, 0, thermal_event_time},
};

static const struct row *row_of(uint32_t id)
{
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        if (id >= rows[i].first && id <= rows[i].last)
            return &rows[i];
    return NULL;
}

int field_value(device gpu, uint32_t id, uint32_t scope, uint32_t *type, uint64_t *value)
{
    const struct row *row = row_of(id);
    const struct setting *set = setting_of(gpu->field_settings, id, scope);
    if (id < FIELD_IDS)
        __atomic_fetch_add(&gpu->field_calls[id], 1, __ATOMIC_RELAXED);
    if (row) {
        __atomic_fetch_add(&gpu->calls[row->call], 1, __ATOMIC_RELAXED);
        if (gpu->errors[row->call])
            return (int)gpu->errors[row->call];
    }
    *type = row ? row->type : UNSIGNED_LONG_LONG;
    if (set) {
        if (set->type != BY_TABLE)
            *type = set->type;
        *value = set->value.whole;
        return (int)set->error;
    }
    if (!row)
        return NOT_SUPPORTED;
    if (row->links && scope != ALL_LINKS && scope >= gpu->links)
        return INVALID_ARGUMENT;
    *value = row->value(gpu, id - row->first, scope);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(device gpu, int count, struct field *fields)
{
    int error = enter(gpu, CALL_fields);
    if (error)
        return error;
    advance(gpu);
    for (int i = 0; i < count; i++) {
        struct field *field = &fields[i];
        uint64_t value;
        field->timestamp = (int64_t)(now() * 1e6);
        field->latency = 0;
        memset(&field->value, 0xa5, sizeof field->value); /* garbage where the wrong member is read */
        field->error = field_value(gpu, field->id, field->scope, &field->type, &value);
        if (field->error)
            continue;
        if (field->type == UNSIGNED_INT || field->type == SIGNED_INT)
            field->value.small = (unsigned)value;
        else
            field->value.large = value;
    }
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *active)
{
    uint32_t type;
    uint64_t value;
    int error = enter(gpu, CALL_nvlink);
    if (!error && link >= gpu->links)
        error = INVALID_ARGUMENT;
    if (!error)
        error = field_value(gpu, 165, link, &type, &value);
    if (!error)
        *active = value != 0;
    return error;
}

int nvmlDeviceGetNvLinkErrorCounter(device gpu, unsigned link, unsigned counter, unsigned long long *value)
{
    int error = enter(gpu, CALL_nvlink_errors);
    if (error || link >= gpu->links || counter > 4)
        return error ? error : INVALID_ARGUMENT;
    *value = 0;
    return SUCCESS;
}
