/* The structs that programs hand to NVML, laid out as in nvml.h; fake_nvml_size() tells their sizes to a test. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include <stdint.h>

#include "state.h"

/* The word that says which version of a struct a program was compiled with. */
#define VERSION(type, number) (unsigned)(sizeof(type) | (number) << 24)

struct pci { /* nvmlPciInfo_t */
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct memory { /* nvmlMemory_t: what the driver reserves counts as used */
    uint64_t total, free, used;
};

struct memory_v2 { /* nvmlMemory_v2_t */
    unsigned version;
    uint64_t total, reserved, free, used;
};

struct bar1 { /* nvmlBAR1Memory_t */
    uint64_t total, free, used;
};

struct utilization { /* nvmlUtilization_t */
    unsigned gpu, memory;
};

struct temperature { /* nvmlTemperature_v1_t */
    unsigned version, sensor;
    int temperature;
};

struct margin { /* nvmlMarginTemperature_v1_t */
    unsigned version;
    int margin;
};

struct process { /* nvmlProcessInfo_v2_t, the same for _v3 */
    unsigned id;
    uint64_t memory;
    unsigned gpu_instance, compute_instance;
};

struct process_utilization { /* nvmlProcessUtilizationSample_t */
    unsigned id;
    uint64_t timestamp;
    unsigned sm, memory, encoder, decoder;
};

struct field { /* nvmlFieldValue_t */
    unsigned id, scope;
    int64_t timestamp, latency;
    unsigned type;
    int error;
    union {
        double real;
        unsigned small;
        uint64_t large;
    } value;
};

struct sram_ecc { /* nvmlEccSramErrorStatus_v1_t */
    unsigned version;
    uint64_t aggregate[3], recent[3]; /* each: uncorrected by parity and by SEC-DED, corrected */
    uint64_t buckets[5];
    unsigned threshold_exceeded;
};

struct row_histogram { /* nvmlRowRemapperHistogramValues_t */
    unsigned banks[5];
};

struct fabric { /* nvmlGpuFabricInfo_t */
    uint8_t cluster[16];
    int status;
    unsigned clique, state;
};

struct fabric_v2 { /* nvmlGpuFabricInfo_v2_t */
    unsigned version;
    struct fabric info;
    unsigned health_mask;
};

struct fabric_v3 { /* nvmlGpuFabricInfo_v3_t */
    struct fabric_v2 v2;
    uint8_t health_summary;
};

struct attributes { /* nvmlDeviceAttributes_t */
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, flow_engines, gpu_slices, compute_slices;
    uint64_t memory_mebibytes;
};

struct event_data { /* nvmlEventData_t */
    device gpu;
    uint64_t type, data;
    unsigned gpu_instance, compute_instance;
};

struct gpm_support { /* nvmlGpmSupport_t */
    unsigned version, supported;
};

struct gpm_metric { /* nvmlGpmMetric_t */
    unsigned id;
    int error;
    double value;
    const char *words[3];          /* short name, long name, unit */
};

struct gpm_metrics { /* nvmlGpmMetricsGet_t; how long `metrics` is depends on the header a program was built with */
    unsigned version, count;
    const struct sample *first, *second;
    struct gpm_metric metrics[GPM_IDS];
};

#endif
