/* MIG devices: handles of their own, which most calls refuse. */
#include "layouts.h"
#include "state.h"

#include <stddef.h>

struct mig *mig_of(device handle)
{
    char *address = (char *)handle;
    if (address < (char *)state->gpus || address >= (char *)(state->gpus + MAX_GPUS))
        return NULL;
    device gpu = &state->gpus[(unsigned long)(address - (char *)state->gpus) / sizeof *gpu];
    char *first = (char *)gpu->migs;
    return address >= first && address < first + sizeof gpu->migs ? (struct mig *)(void *)handle : NULL;
}

device parent_of(struct mig *mig)
{
    return &state->gpus[(unsigned long)((char *)mig - (char *)state->gpus) / sizeof(struct gpu)];
}

/* Enter through a MIG handle; a GPU's own is not taken. */
static int enter_mig(device handle, enum call call, struct mig **mig)
{
    if (!is_initialized())
        return UNINITIALIZED;
    *mig = mig_of(handle);
    return *mig ? enter(parent_of(*mig), call) : INVALID_ARGUMENT;
}

int nvmlDeviceGetMaxMigDeviceCount(device gpu, unsigned *count)
{
    int error = enter(gpu, CALL_mig_devices);
    if (!error)
        *count = MAX_MIGS;
    return error;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *handle)
{
    int error = enter(gpu, CALL_mig_devices);
    if (error || !gpu->mig || index >= MAX_MIGS)
        return error ? error : gpu->mig ? INVALID_ARGUMENT : NOT_SUPPORTED;
    if (!*gpu->migs[index].profile)
        return NOT_FOUND;
    *handle = (device)(void *)&gpu->migs[index];
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device handle, device *gpu)
{
    struct mig *mig;
    int error = enter_mig(handle, CALL_mig_devices, &mig);
    if (!error)
        *gpu = parent_of(mig);
    return error;
}

int nvmlDeviceIsMigDeviceHandle(device handle, unsigned *is_mig)
{
    if (!is_initialized())
        return UNINITIALIZED;
    *is_mig = mig_of(handle) ? 1 : 0;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(device handle, unsigned *id)
{
    struct mig *mig;
    int error = enter_mig(handle, CALL_mig_devices, &mig);
    if (!error)
        *id = mig->gpu_instance;
    return error;
}

int nvmlDeviceGetComputeInstanceId(device handle, unsigned *id)
{
    struct mig *mig;
    int error = enter_mig(handle, CALL_mig_devices, &mig);
    if (!error)
        *id = mig->compute_instance;
    return error;
}

int nvmlDeviceGetAttributes_v2(device handle, struct attributes *attributes)
{
    struct mig *mig;
    int error = enter_mig(handle, CALL_mig_devices, &mig);
    if (!error)
        *attributes = (struct attributes){.multiprocessors = mig->multiprocessors,
                                          .copy_engines = mig->slices,
                                          .gpu_slices = mig->slices,
                                          .compute_slices = mig->slices,
                                          .memory_mebibytes = mig->memory_total >> 20};
    return error;
}
