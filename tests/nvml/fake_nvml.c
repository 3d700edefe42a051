/* A libnvidia-ml.so.1 for machines without a GPU: what nvidia-ml-py calls, answered from one struct.
 *
 * The struct lies in the file that FAKE_NVML_STATE names, mapped shared, so that a test changes it while a program
 * reads (build.py holds its Python mirror). Without the variable the library makes up eight busy H100s whose values
 * move. Compiled with -DSTATE_WRITER the same source is a program that writes the default state to a file.
 * Signatures and struct layouts follow nvml.h; sizes are compared with nvidia-ml-py's in test_fake_nvml.py.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAX_GPUS 16

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

/* What can be made to fail, and is counted, one by one for each GPU. */
#define CALLS(X)                                                                                                       \
    X(handle) X(uuid) X(name) X(pci) X(minor) X(memory) X(memory_v2) X(utilization) X(clock) X(max_clock) X(power)     \
    X(power_limit) X(energy) X(temperature) X(memory_temperature) X(threshold) X(clock_events) X(fields) X(ecc)        \
    X(persistence) X(mig) X(processes) X(remapped_rows) X(pcie) X(other)
#define AS_ENUM(name) CALL_##name,
#define AS_WORD(name) #name " "
enum call { CALLS(AS_ENUM) CALL_COUNT };

struct gpu {
    char uuid[96];
    char name[96];
    double energy_time;            /* seconds, CLOCK_MONOTONIC: when `energy` was last brought up to date */
    uint64_t memory_total;         /* bytes */
    uint64_t memory_used;
    uint64_t memory_reserved;
    uint64_t energy;               /* millijoules */
    uint64_t clock_events;
    uint64_t ecc[2][2];            /* [corrected, uncorrected][volatile, aggregate] */
    uint64_t process_memory;
    uint64_t calls[CALL_COUNT];    /* how often each was called */
    uint32_t errors[CALL_COUNT];   /* what each returns */
    uint32_t error;                /* what every call returns */
    int32_t block_ms;              /* every call takes that long; < 0: until the test clears it */
    uint32_t utilization[2];       /* percent: GPU, memory controller */
    uint32_t temperature[2];       /* degrees Celsius: die, memory */
    uint32_t thresholds[2];        /* shutdown, slowdown */
    uint32_t power;                /* milliwatts */
    uint32_t power_limit;
    uint32_t clocks[4];            /* MHz: graphics, SM, memory, video */
    uint32_t max_clocks[4];
    uint32_t persistence;
    uint32_t mig;
    uint32_t process_id;           /* 0: no process */
    uint32_t remapped[4];          /* corrected, uncorrected, pending, failure */
    uint32_t pcie[3];              /* generation, width, replays */
};

struct state {
    uint32_t size;                 /* sizeof(struct state), so that a mirror out of step is noticed */
    uint32_t count;
    uint32_t init_error;
    int32_t init_block_ms;
    uint32_t init_calls;
    uint32_t live;                 /* 1: values move around what the struct says */
    char driver_version[80];
    struct gpu gpus[MAX_GPUS];
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void fill_default(struct state *state)
{
    memset(state, 0, sizeof *state);
    state->size = sizeof *state;
    state->count = 8;
    state->live = 1;
    strcpy(state->driver_version, "550.54.15");
    for (int i = 0; i < MAX_GPUS; i++) {
        struct gpu *gpu = &state->gpus[i];
        snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-fa4e0000-0000-4000-8000-%012x", i);
        strcpy(gpu->name, "NVIDIA H100 80GB HBM3");
        gpu->memory_total = 85520809984;   /* 81,559 MiB, as nvidia-smi shows an H100 */
        gpu->memory_used = 73014444032;
        gpu->memory_reserved = 553648128;
        gpu->energy = (uint64_t)(now() * 600e3);   /* as if at 600 W since the machine started */
        gpu->energy_time = now();
        gpu->utilization[0] = 96;
        gpu->utilization[1] = 48;
        gpu->temperature[0] = 58 + (uint32_t)i % 4;
        gpu->temperature[1] = 70 + (uint32_t)i % 4;
        gpu->thresholds[0] = 92;
        gpu->thresholds[1] = 89;
        gpu->power = 620000 + 4000 * (uint32_t)i;
        gpu->power_limit = 700000;
        gpu->clocks[0] = gpu->clocks[1] = 1755;
        gpu->clocks[2] = 2619;
        gpu->clocks[3] = 1545;
        gpu->max_clocks[0] = gpu->max_clocks[1] = 1980;
        gpu->max_clocks[2] = 2619;
        gpu->max_clocks[3] = 1545;
        gpu->persistence = 1;
        gpu->pcie[0] = 5;
        gpu->pcie[1] = 16;
    }
}

#ifdef STATE_WRITER

int main(int argc, char **argv)
{
    static struct state state;
    fill_default(&state);
    FILE *file = argc == 2 ? fopen(argv[1], "wb") : NULL;
    if (!file || fwrite(&state, sizeof state, 1, file) != 1 || fclose(file)) {
        perror("state file");
        return 1;
    }
    puts(CALLS(AS_WORD));
    return 0;
}

#else

typedef struct gpu *device;

static struct state *state;
static int initialized;

static int open_state(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    if (!path || !*path) {
        static struct state made_up;
        fill_default(&made_up);
        state = &made_up;
        return SUCCESS;
    }
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return UNKNOWN;
    void *mapped = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED || ((struct state *)mapped)->size != sizeof *state)
        return UNKNOWN;
    state = mapped;
    return SUCCESS;
}

static void block(const volatile int32_t *milliseconds)
{
    if (*milliseconds > 0)
        usleep((useconds_t)*milliseconds * 1000);
    while (*milliseconds < 0)
        usleep(10000);
}

static int enter(device gpu, enum call call)
{
    if (!initialized)
        return UNINITIALIZED;
    if (gpu < state->gpus || gpu >= state->gpus + MAX_GPUS)
        return INVALID_ARGUMENT;
    gpu->calls[call]++;
    block(&gpu->block_ms);
    if (gpu >= state->gpus + state->count)
        return GPU_IS_LOST;
    return (int)(gpu->error ? gpu->error : gpu->errors[call]);
}

/* `base`, or, in a live state, `base` swinging by `share` of itself, each GPU at its own pace. */
static uint32_t around(device gpu, uint32_t base, double share)
{
    if (!state->live)
        return base;
    double period = 61.0 + 7.0 * (double)(gpu - state->gpus);
    return (uint32_t)(base * (1.0 + share * sin(now() * 2.0 * M_PI / period)) + 0.5);
}

static uint32_t power_now(device gpu)
{
    return around(gpu, gpu->power, 0.08);
}

static uint64_t energy_now(device gpu)
{
    if (state->live) {
        double time = now();
        gpu->energy += (uint64_t)(power_now(gpu) * (time - gpu->energy_time));
        gpu->energy_time = time;
    }
    return gpu->energy;
}

#define GETTER(symbol, call, type, expression)                                                                         \
    int symbol(device gpu, type *value)                                                                                \
    {                                                                                                                  \
        int error = enter(gpu, CALL_##call);                                                                           \
        if (!error)                                                                                                    \
            *value = (expression);                                                                                     \
        return error;                                                                                                  \
    }
#define CHOICE(symbol, call, type, choices, expression)                                                                \
    int symbol(device gpu, unsigned choice, type *value)                                                               \
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
#define ABSENT(symbol, type)                                                                                           \
    int symbol(device gpu, type *value)                                                                                \
    {                                                                                                                  \
        (void)value;                                                                                                   \
        int error = enter(gpu, CALL_other);                                                                            \
        return error ? error : NOT_SUPPORTED;                                                                          \
    }

static int copy(char *value, unsigned length, const char *text)
{
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(value, text);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int error = state ? SUCCESS : open_state();
    if (error)
        return error;
    state->init_calls++;
    block(&state->init_block_ms);
    if (!state->init_error)
        initialized++;
    return (int)state->init_error;
}

int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
    if (!initialized)
        return UNINITIALIZED;
    initialized--;
    return SUCCESS;
}

const char *nvmlErrorString(int error)
{
    return error == SUCCESS ? "Success" : "made-up error";
}

int nvmlSystemGetDriverVersion(char *value, unsigned length)
{
    return initialized ? copy(value, length, state->driver_version) : UNINITIALIZED;
}

int nvmlSystemGetNVMLVersion(char *value, unsigned length)
{
    return initialized ? copy(value, length, "12.550.54.15") : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion(int *value)
{
    *value = 12040;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *value)
{
    return nvmlSystemGetCudaDriverVersion(value);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!initialized)
        return UNINITIALIZED;
    *count = state->count;
    return SUCCESS;
}

static int handle(unsigned index, device *gpu)
{
    if (index >= state->count)
        return NOT_FOUND;
    *gpu = &state->gpus[index];
    return enter(*gpu, CALL_handle);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *gpu)
{
    if (!initialized)
        return UNINITIALIZED;
    return index >= state->count ? INVALID_ARGUMENT : handle(index, gpu);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device *gpu)
{
    unsigned index = 0;
    if (!initialized)
        return UNINITIALIZED;
    while (index < state->count && strcmp(state->gpus[index].uuid, uuid))
        index++;
    return handle(index, gpu);
}

struct pci { /* nvmlPciInfo_t */
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

static unsigned bus_of(device gpu)
{
    return 0x1b + 0x20 * (unsigned)(gpu - state->gpus);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device *gpu)
{
    unsigned domain, bus;
    if (!initialized)
        return UNINITIALIZED;
    if (sscanf(bus_id, "%x:%x", &domain, &bus) != 2 || bus < 0x1b || (bus - 0x1b) % 0x20)
        return NOT_FOUND;
    return handle((bus - 0x1b) / 0x20, gpu);
}

int nvmlDeviceGetPciInfo_v3(device gpu, struct pci *pci)
{
    int error = enter(gpu, CALL_pci);
    if (error)
        return error;
    memset(pci, 0, sizeof *pci);
    pci->bus = bus_of(gpu);
    pci->device_id = 0x233010de;
    snprintf(pci->legacy_bus_id, sizeof pci->legacy_bus_id, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

TEXT(nvmlDeviceGetUUID, uuid, gpu->uuid)
TEXT(nvmlDeviceGetName, name, gpu->name)
TEXT(nvmlDeviceGetSerial, other, "1650000000000")
GETTER(nvmlDeviceGetMinorNumber, minor, unsigned, (unsigned)(gpu - state->gpus))
GETTER(nvmlDeviceGetIndex, other, unsigned, (unsigned)(gpu - state->gpus))

struct memory { /* nvmlMemory_t: what the driver reserves counts as used */
    uint64_t total, free, used;
};

struct memory_v2 { /* nvmlMemory_v2_t */
    unsigned version;
    uint64_t total, reserved, free, used;
};

static uint64_t used_now(device gpu)
{
    return gpu->memory_used - (state->live ? (uint64_t)around(gpu, 512, 0.5) << 20 : 0);
}

int nvmlDeviceGetMemoryInfo(device gpu, struct memory *memory)
{
    int error = enter(gpu, CALL_memory);
    if (error)
        return error;
    uint64_t used = used_now(gpu) + gpu->memory_reserved;
    *memory = (struct memory){gpu->memory_total, gpu->memory_total - used, used};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *memory)
{
    int error = enter(gpu, CALL_memory_v2);
    if (error)
        return error;
    if (memory->version != (sizeof *memory | 2 << 24))
        return ARGUMENT_VERSION_MISMATCH;
    memory->total = gpu->memory_total;
    memory->reserved = gpu->memory_reserved;
    memory->used = used_now(gpu);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

struct utilization { /* nvmlUtilization_t */
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(device gpu, struct utilization *utilization)
{
    int error = enter(gpu, CALL_utilization);
    if (error)
        return error;
    utilization->gpu = around(gpu, gpu->utilization[0], 0.03);
    utilization->memory = around(gpu, gpu->utilization[1], 0.1);
    return SUCCESS;
}

CHOICE(nvmlDeviceGetClockInfo, clock, unsigned, 4, around(gpu, gpu->clocks[choice], choice == 2 ? 0 : 0.02))
CHOICE(nvmlDeviceGetMaxClockInfo, max_clock, unsigned, 4, gpu->max_clocks[choice])
GETTER(nvmlDeviceGetPowerUsage, power, unsigned, power_now(gpu))
GETTER(nvmlDeviceGetEnforcedPowerLimit, power_limit, unsigned, gpu->power_limit)
GETTER(nvmlDeviceGetPowerManagementLimit, power_limit, unsigned, gpu->power_limit)
GETTER(nvmlDeviceGetTotalEnergyConsumption, energy, unsigned long long, energy_now(gpu))
CHOICE(nvmlDeviceGetTemperature, temperature, unsigned, 1, around(gpu, gpu->temperature[0], 0.05))
CHOICE(nvmlDeviceGetTemperatureThreshold, threshold, unsigned, 2, gpu->thresholds[choice])
GETTER(nvmlDeviceGetCurrentClocksEventReasons, clock_events, unsigned long long, gpu->clock_events)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, clock_events, unsigned long long, gpu->clock_events)
GETTER(nvmlDeviceGetPersistenceMode, persistence, unsigned, gpu->persistence)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, pcie, unsigned, gpu->pcie[0])
GETTER(nvmlDeviceGetCurrPcieLinkWidth, pcie, unsigned, gpu->pcie[1])
GETTER(nvmlDeviceGetPcieReplayCounter, pcie, unsigned, gpu->pcie[2])
GETTER(nvmlDeviceGetPerformanceState, other, unsigned, 0)
GETTER(nvmlDeviceGetComputeMode, other, unsigned, 0)
ABSENT(nvmlDeviceGetFanSpeed, unsigned)
ABSENT(nvmlDeviceGetDisplayMode, unsigned)

struct temperature { /* nvmlTemperature_v1_t */
    unsigned version, sensor;
    int temperature;
};

int nvmlDeviceGetTemperatureV(device gpu, struct temperature *reading)
{
    unsigned value;
    if (reading->version != (sizeof *reading | 1 << 24))
        return ARGUMENT_VERSION_MISMATCH;
    int error = nvmlDeviceGetTemperature(gpu, reading->sensor, &value);
    if (!error)
        reading->temperature = (int)value;
    return error;
}

int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor)
{
    *major = 9;
    *minor = 0;
    return enter(gpu, CALL_other);
}

int nvmlDeviceGetMigMode(device gpu, unsigned *current, unsigned *pending)
{
    int error = enter(gpu, CALL_mig);
    if (!error)
        *current = *pending = gpu->mig;
    return error;
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

int nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failure)
{
    int error = enter(gpu, CALL_remapped_rows);
    *corrected = gpu->remapped[0];
    *uncorrected = gpu->remapped[1];
    *pending = gpu->remapped[2];
    *failure = gpu->remapped[3];
    return error;
}

struct process { /* nvmlProcessInfo_v2_t, the same for _v3 */
    unsigned id;
    uint64_t memory;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *count, struct process *processes)
{
    int error = enter(gpu, CALL_processes);
    unsigned room = *count;
    *count = gpu->process_id ? 1 : 0;
    if (error || room < *count)
        return error ? error : INSUFFICIENT_SIZE;
    if (*count)
        processes[0] = (struct process){gpu->process_id, gpu->process_memory, UINT32_MAX, UINT32_MAX};
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(device gpu, unsigned *count, struct process *processes)
{
    (void)processes;
    *count = 0;
    return enter(gpu, CALL_processes);
}

enum { DOUBLE, UNSIGNED_INT, UNSIGNED_LONG, UNSIGNED_LONG_LONG }; /* nvmlValueType_t */

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

static void number(struct field *field, device gpu, enum call call, unsigned type, uint64_t value)
{
    gpu->calls[call]++;
    field->error = (int)gpu->errors[call];
    field->type = type;
    if (type == UNSIGNED_INT)
        field->value.small = (unsigned)value;
    else
        field->value.large = value;
}

int nvmlDeviceGetFieldValues(device gpu, int count, struct field *fields)
{
    int error = enter(gpu, CALL_fields);
    for (int i = 0; i < count && !error; i++) {
        struct field *field = &fields[i];
        unsigned id = field->id;
        field->timestamp = (int64_t)(now() * 1e6);
        field->latency = 0;
        memset(&field->value, 0xa5, sizeof field->value); /* garbage where the wrong member is read */
        if (id >= 3 && id <= 6)
            number(field, gpu, CALL_ecc, UNSIGNED_LONG_LONG, gpu->ecc[(id - 3) % 2][(id - 3) / 2]);
        else if (id == 82)
            number(field, gpu, CALL_memory_temperature, UNSIGNED_INT, around(gpu, gpu->temperature[1], 0.04));
        else if (id == 83)
            number(field, gpu, CALL_energy, UNSIGNED_LONG_LONG, energy_now(gpu));
        else if (id == 94)
            number(field, gpu, CALL_pcie, UNSIGNED_INT, gpu->pcie[2]);
        else if (id >= 142 && id <= 145)
            number(field, gpu, CALL_remapped_rows, UNSIGNED_INT, gpu->remapped[id - 142]);
        else if (id == 185 || id == 186)
            number(field, gpu, CALL_power, UNSIGNED_INT, power_now(gpu));
        else
            field->error = NOT_SUPPORTED;
    }
    return error;
}

/* Not NVML: the size of a struct, 0 for an unknown name, for the test that compares layouts. */
unsigned fake_nvml_size(const char *name)
{
    static const struct {
        const char *name;
        unsigned size;
    } sizes[] = {
        {"memory", sizeof(struct memory)},           {"memory_v2", sizeof(struct memory_v2)},
        {"utilization", sizeof(struct utilization)}, {"pci", sizeof(struct pci)},
        {"field", sizeof(struct field)},             {"process", sizeof(struct process)},
        {"temperature", sizeof(struct temperature)},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, name))
            return sizes[i].size;
    return 0;
}

#endif
