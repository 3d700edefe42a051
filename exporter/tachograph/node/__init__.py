"""The per-node sidecar: listens to ranks, reads NVML, serves /metrics."""
