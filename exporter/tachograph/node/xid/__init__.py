"""The messages of driver and kernel: Xid events from NVML, and the kernel's log."""
