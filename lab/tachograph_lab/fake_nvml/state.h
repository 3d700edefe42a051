/* The made-up node: one struct, shared between the library and the test that steers it (build.py mirrors it). */
#ifndef STATE_H
#define STATE_H

#include <stdint.h>

#define MAX_GPUS 16
#define MAX_LINKS 18
#define MAX_PROCESSES 4
#define MAX_MIGS 7
#define FIELD_IDS 308    /* NVML_FI_MAX */
#define GPM_IDS 477      /* NVML_GPM_METRIC_MAX */
#define SETTINGS 128
#define EVENTS 64

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

/* What can be made to fail, and is counted, one by one for each GPU. */
#define CALLS(X)                                                                                                       \
    X(handle) X(uuid) X(name) X(pci) X(minor) X(serial) X(vbios) X(memory) X(memory_v2) X(bar1) X(utilization)         \
    X(codec) X(clock) X(max_clock) X(power) X(power_limit) X(power_limits) X(energy) X(temperature)                    \
    X(memory_temperature) X(threshold) X(temperature_limits) X(margin) X(fan) X(clock_events) X(clock_event_time)      \
    X(performance) X(fields) X(ecc) X(ecc_mode) X(sram_ecc) X(retired_pages) X(remapped_rows) X(row_histogram)         \
    X(recovery_action) X(persistence) X(mig) X(mig_devices) X(processes) X(mps_processes) X(process_utilization)       \
    X(pcie) X(pcie_max) X(pcie_errors) X(pcie_bytes) X(pcie_throughput) X(nvlink) X(nvlink_errors) X(nvlink_bytes)     \
    X(fabric) X(gpm_support) X(gpm_sample) X(gpm_metrics) X(event_types) X(register_events) X(event_wait) X(other)
#define AS_ENUM(name) CALL_##name,
#define AS_WORD(name) #name " "
enum call { CALLS(AS_ENUM) CALL_COUNT };

/* What a test says about one field value or GPM metric; it wins over what the library would make up. */
struct setting {
    uint32_t id;                   /* 0: unused */
    uint32_t scope;                /* a field's scope; for GPM the GPU instance, 0: the whole GPU */
    uint32_t error;
    uint32_t type;                 /* nvmlValueType_t; BY_TABLE: as the library has it */
    union {
        double real;
        uint64_t whole;
    } value;
};
#define BY_TABLE UINT32_MAX

enum event_time { SW_POWER_CAP, SYNC_BOOST, BOARD_LIMIT, LOW_UTILIZATION, RELIABILITY, SW_THERMAL, HW_THERMAL,
                  HW_POWER_BRAKE, EVENT_TIMES };

#define SINCE_BOOT_FIRST 248       /* GPM: SM cycles elapsed, active, by pipe, with PCIe bytes in between */
#define SINCE_BOOT 13              /* ... 260 */
#define PCIE_TX_BYTES 7
#define PCIE_RX_BYTES 8

struct mig {                       /* a MIG device: one compute instance of one GPU instance */
    char uuid[96];
    char profile[32];              /* empty: there is none */
    uint64_t memory_total;
    uint64_t memory_used;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t slices;
    uint32_t multiprocessors;
};

struct gpu {
    char uuid[96];
    char name[96];
    char serial[32];
    char vbios[32];
    char bus_id[32];               /* empty: made up */
    uint64_t counted_until;        /* ns, CLOCK_MONOTONIC: when the counters below were last brought up to date */
    uint64_t energy;               /* millijoules */
    uint64_t since_boot[SINCE_BOOT];
    uint64_t nvlink_bytes[2];      /* receive, transmit, all links */
    uint64_t event_time[EVENT_TIMES]; /* ns */
    uint64_t memory_total;         /* bytes */
    uint64_t memory_used;
    uint64_t memory_reserved;
    uint64_t bar1[2];              /* total, used */
    uint64_t clock_events;
    uint64_t ecc[2][2];            /* [corrected, uncorrected][volatile, aggregate] */
    uint64_t process_memory;       /* of each process */
    uint64_t event_types;
    uint64_t calls[CALL_COUNT];    /* how often each was called */
    uint32_t errors[CALL_COUNT];   /* what each returns */
    uint32_t error;                /* what every call returns */
    int32_t block_ms;              /* every call takes that long; < 0: until the test clears it */
    uint32_t unplugged;
    uint32_t utilization[2];       /* percent: GPU, memory controller */
    uint32_t codec[2];             /* percent: encoder, decoder */
    uint32_t temperature[2];       /* degrees Celsius: die, memory */
    uint32_t thresholds[4];        /* shutdown, slowdown, memory maximum, GPU maximum */
    uint32_t power;                /* milliwatts */
    uint32_t power_limit;
    uint32_t power_limits[3];      /* lowest, highest, default */
    uint32_t clocks[4];            /* MHz: graphics, SM, memory, video */
    uint32_t max_clocks[4];
    uint32_t multiprocessors;
    uint32_t performance_state;
    uint32_t persistence;
    uint32_t ecc_mode;
    uint32_t sram_threshold;       /* 1: the part has had too many SRAM errors */
    uint32_t retired[3];           /* pages: corrected, uncorrected, pending */
    uint32_t remapped[4];          /* corrected, uncorrected, pending, failure */
    uint32_t banks[5];             /* by spare rows: max, high, partial, low, none */
    uint32_t recovery_action;
    uint32_t mig;
    uint32_t process_ids[MAX_PROCESSES]; /* up to the first 0 */
    uint32_t pcie[3];              /* generation, width, replays */
    uint32_t pcie_max[2];          /* generation, width */
    uint32_t links;
    uint32_t fabric[4];            /* state, status, clique, health mask */
    uint32_t gpm;                  /* 0: a part before Hopper */
    uint32_t field_calls[FIELD_IDS];
    uint32_t gpm_calls[GPM_IDS];
    struct setting field_settings[SETTINGS];
    struct setting gpm_settings[SETTINGS];
    struct mig migs[MAX_MIGS];
};

struct event {
    uint64_t type;
    uint64_t data;
    uint32_t gpu;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t unused;
};

struct state {
    uint32_t size;                 /* sizeof(struct state), so that a mirror out of step is noticed */
    uint32_t count;
    uint32_t init_error;
    int32_t init_block_ms;
    uint32_t init_calls;
    uint32_t live;                 /* 1: values move around what the struct says */
    uint32_t cuda_version;
    uint32_t event_count;          /* events ever queued; the last EVENTS of them are kept */
    char driver_version[80];
    char error_words[80];          /* what nvmlErrorString returns; empty: made up */
    struct event events[EVENTS];
    struct gpu gpus[MAX_GPUS];
};

#pragma GCC visibility push(hidden)

typedef struct gpu *device;

extern struct state *state;
extern int is_steered;              /* 0: no test can change the state */

/* Fill in eight healthy H100s that have been at work for so long. */
void fill_default(struct state *made, double seconds);

double now(void);
void rest(double seconds);
int is_initialized(void);
unsigned index_of(device gpu);
void block(const volatile int32_t *milliseconds);

/* Count a call on a GPU, take as long as the test wants, and return what it is to return. */
int enter(device gpu, enum call call);

/* The same by the handle of a GPU or of a MIG device, which `mig` then points to. */
int enter_either(device handle, enum call call, struct mig **mig);

/* The place of a GPU among those that the driver lists. */
unsigned listed_index(device gpu);

/* Copy a text to where a caller has room for it; an error if there is too little. */
int copy(char *value, unsigned length, const char *text);

/* Return the MIG device behind a handle, NULL for a GPU's. */
struct mig *mig_of(device handle);
device parent_of(struct mig *mig);

/* `base`, or, in a live state, `base` swinging by `share` of itself, each GPU at its own pace. */
double swing(device gpu, double base, double share);
uint32_t around(device gpu, uint32_t base, double share);
uint32_t power_now(device gpu);

/* In a live state, bring all counters of a GPU up to date; they only grow, whoever calls. */
void advance(device gpu);

/* What a test says about a field value or GPM metric, NULL if nothing. */
const struct setting *setting_of(const struct setting *settings, uint32_t id, uint32_t scope);

/* A field value or GPM metric as a test set it or as made up, in NVML's units; returns its own error. */
int field_value(device gpu, uint32_t id, uint32_t scope, uint32_t *type, uint64_t *value);
int gpm_value(device gpu, uint32_t instance, uint32_t metric, double *value);

#pragma GCC visibility pop

#endif
