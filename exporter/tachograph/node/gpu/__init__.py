"""The GPUs of this node, read through NVML in a supervised worker process."""
