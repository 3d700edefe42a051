#include "layouts.h"

#include <stddef.h>
#include <string.h>

/* Not NVML: the size of a struct, 0 for an unknown name, for the test that compares layouts. */
unsigned fake_nvml_size(const char *name)
{
#define SIZE(name) {#name, sizeof(struct name)}
    static const struct {
        const char *name;
        unsigned size;
    } sizes[] = {
        SIZE(pci), SIZE(memory), SIZE(memory_v2), SIZE(bar1), SIZE(utilization), SIZE(temperature), SIZE(margin),
        SIZE(process), SIZE(process_utilization), SIZE(field), SIZE(sram_ecc), SIZE(row_histogram), SIZE(fabric),
        SIZE(fabric_v2), SIZE(fabric_v3), SIZE(attributes), SIZE(event_data), SIZE(gpm_support), SIZE(gpm_metric),
        SIZE(gpm_metrics),
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!strcmp(sizes[i].name, name))
            return sizes[i].size;
    return 0;
}
