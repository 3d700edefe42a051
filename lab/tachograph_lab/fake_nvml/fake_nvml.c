/* A libnvidia-ml.so.1 for machines without a GPU: what nvidia-ml-py and nvitop call, answered from one struct.
 *
 * The struct lies in the file that FAKE_NVML_STATE names, mapped shared, so that a test changes it while a program
 * reads. Without the variable the library makes up eight busy H100s whose values move. Signatures and struct layouts
 * follow nvml.h; sizes are compared with nvidia-ml-py's in test_fake_nvml.py.
 * Here: the library itself and the list of GPUs; readings.c, fields.c, gpm.c, mig.c and events.c have the rest.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "layouts.h"
#include "state.h"

#define NAP 0.01                   /* seconds between two looks at whether a block is over */

static int initialized;

int is_initialized(void)
{
    return __atomic_load_n(&initialized, __ATOMIC_RELAXED) > 0;
}

static int open_state(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    if (!path || !*path) {
        static struct state made_up;
        fill_default(&made_up, now());   /* since the machine started, so that a restart is no reset */
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
    is_steered = 1;
    return SUCCESS;
}

void block(const volatile int32_t *milliseconds)
{
    if (*milliseconds > 0)
        rest(*milliseconds * 1e-3);
    while (*milliseconds < 0)
        rest(NAP);
}

static int is_listed(device gpu)
{
    return index_of(gpu) < state->count && !gpu->unplugged;
}

int enter(device gpu, enum call call)
{
    if (!is_initialized())
        return UNINITIALIZED;
    if (gpu < state->gpus || gpu >= state->gpus + MAX_GPUS || mig_of(gpu))
        return INVALID_ARGUMENT;
    __atomic_fetch_add(&gpu->calls[call], 1, __ATOMIC_RELAXED);
    block(&gpu->block_ms);
    if (!is_listed(gpu))
        return GPU_IS_LOST;
    return (int)(gpu->error ? gpu->error : gpu->errors[call]);
}

int enter_either(device handle, enum call call, struct mig **mig)
{
    *mig = is_initialized() ? mig_of(handle) : NULL;
    return enter(*mig ? parent_of(*mig) : handle, call);
}

int copy(char *value, unsigned length, const char *text)
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
    __atomic_fetch_add(&state->init_calls, 1, __ATOMIC_RELAXED);
    block(&state->init_block_ms);
    if (!state->init_error)
        __atomic_fetch_add(&initialized, 1, __ATOMIC_RELAXED);
    return (int)state->init_error;
}

int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
    if (!is_initialized())
        return UNINITIALIZED;
    __atomic_fetch_sub(&initialized, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}

const char *nvmlErrorString(int error)
{
    if (error == SUCCESS)
        return "Success";
    return state && *state->error_words ? state->error_words : "made-up error";
}

int nvmlSystemGetDriverVersion(char *value, unsigned length)
{
    return is_initialized() ? copy(value, length, state->driver_version) : UNINITIALIZED;
}

int nvmlSystemGetNVMLVersion(char *value, unsigned length)
{
    char version[100];
    if (!is_initialized())
        return UNINITIALIZED;
    snprintf(version, sizeof version, "%u.%.80s", state->cuda_version / 1000, state->driver_version);
    return copy(value, length, version);
}

int nvmlSystemGetCudaDriverVersion_v2(int *value)
{
    *value = state ? (int)state->cuda_version : 0;   /* answers without nvmlInit, as the driver's does */
    return state ? SUCCESS : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion(int *value)
{
    return nvmlSystemGetCudaDriverVersion_v2(value);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!is_initialized())
        return UNINITIALIZED;
    *count = 0;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        *count += is_listed(&state->gpus[i]);
    return SUCCESS;
}

unsigned listed_index(device gpu)
{
    unsigned index = 0;
    for (device other = state->gpus; other < gpu; other++)
        index += is_listed(other);
    return index;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *gpu)
{
    if (!is_initialized())
        return UNINITIALIZED;
    for (device one = state->gpus; one < state->gpus + MAX_GPUS; one++)
        if (is_listed(one) && listed_index(one) == index) {
            *gpu = one;
            return enter(one, CALL_handle);
        }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device *gpu)
{
    if (!is_initialized())
        return UNINITIALIZED;
    for (device one = state->gpus; one < state->gpus + MAX_GPUS; one++) {
        if (!is_listed(one))
            continue;
        *gpu = one;
        for (struct mig *mig = one->migs; mig < one->migs + MAX_MIGS; mig++)
            if (*mig->profile && !strcmp(mig->uuid, uuid))
                *gpu = (device)(void *)mig;
        if (*gpu != one || !strcmp(one->uuid, uuid))
            return enter(one, CALL_handle);
    }
    return NOT_FOUND;
}

static unsigned bus_of(device gpu)
{
    return 0x1b + 0x20 * index_of(gpu);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device *gpu)
{
    unsigned domain, bus;
    if (!is_initialized())
        return UNINITIALIZED;
    if (sscanf(bus_id, "%x:%x", &domain, &bus) == 2)
        for (device one = state->gpus; one < state->gpus + MAX_GPUS; one++)
            if (is_listed(one) && bus_of(one) == bus) {
                *gpu = one;
                return enter(one, CALL_handle);
            }
    return NOT_FOUND;
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
    if (*gpu->bus_id)
        return copy(pci->bus_id, sizeof pci->bus_id, gpu->bus_id);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

int nvmlDeviceGetUUID(device handle, char *value, unsigned length)
{
    struct mig *mig;
    int error = enter_either(handle, CALL_uuid, &mig);
    return error ? error : copy(value, length, mig ? mig->uuid : handle->uuid);
}

int nvmlDeviceGetName(device handle, char *value, unsigned length)
{
    struct mig *mig;
    char name[160];
    int error = enter_either(handle, CALL_name, &mig);
    if (error || !mig)
        return error ? error : copy(value, length, handle->name);
    snprintf(name, sizeof name, "%s MIG %s", parent_of(mig)->name, mig->profile);
    return copy(value, length, name);
}
