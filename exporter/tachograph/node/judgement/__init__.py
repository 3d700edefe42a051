"""The node's conclusions about its own ranks and GPUs, in one place for the status page, `/api/node` and `top`."""
