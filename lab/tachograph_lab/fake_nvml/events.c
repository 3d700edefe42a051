/* Events: a ring in the shared state that the test writes, and sets that each remember how far they have read. */
#include "layouts.h"
#include "state.h"

#include <math.h>
#include <stdlib.h>

#define NAP 0.02                   /* seconds between two looks at the ring, which costs a thousandth of a core */
#define IDLE_NAP 1.0               /* ... where no test can ever write to it */

struct event_set {
    uint32_t next;                 /* number of the next event to read */
    uint32_t since[MAX_GPUS];      /* number of the first event that counts: earlier ones are lost */
    uint64_t types[MAX_GPUS];
};

int nvmlEventSetCreate(struct event_set **set)
{
    if (!is_initialized())
        return UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    if (!*set)
        return UNKNOWN;
    (*set)->next = __atomic_load_n(&state->event_count, __ATOMIC_ACQUIRE);
    return SUCCESS;
}

int nvmlEventSetFree(struct event_set *set)
{
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device gpu, unsigned long long types, struct event_set *set)
{
    int error = enter(gpu, CALL_register_events);
    if (error || types & ~gpu->event_types)
        return error ? error : NOT_SUPPORTED;
    set->types[index_of(gpu)] |= types;
    set->since[index_of(gpu)] = __atomic_load_n(&state->event_count, __ATOMIC_ACQUIRE);
    return SUCCESS;
}

static int take(struct event_set *set, struct event_data *data)
{
    uint32_t count = __atomic_load_n(&state->event_count, __ATOMIC_ACQUIRE);
    if (count - set->next > EVENTS)
        set->next = count - EVENTS;
    for (; set->next != count; set->next++) {
        const struct event *event = &state->events[set->next % EVENTS];
        if (!(set->types[event->gpu] & event->type) || (int32_t)(set->next - set->since[event->gpu]) < 0)
            continue;
        *data = (struct event_data){&state->gpus[event->gpu], event->type, event->data, event->gpu_instance,
                                    event->compute_instance};
        set->next++;
        return SUCCESS;
    }
    return TIMEOUT;
}

/* What a test wants the wait of a set with this GPU in it to return. */
static int trouble(const struct event_set *set)
{
    for (unsigned i = 0; i < MAX_GPUS; i++)
        if (set->types[i] && state->gpus[i].errors[CALL_event_wait])
            return (int)state->gpus[i].errors[CALL_event_wait];
    return SUCCESS;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout)
{
    for (double deadline = now() + timeout * 1e-3;;) {
        int error = is_initialized() ? trouble(set) : UNINITIALIZED;
        if (!error)
            error = take(set, data);
        double left = deadline - now();
        if (error != TIMEOUT || left <= 0)
            return error;
        rest(fmin(left, is_steered ? NAP : IDLE_NAP));
    }
}
