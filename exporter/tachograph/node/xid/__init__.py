"""The driver's own error messages: Xid events from NVML and the kernel log."""
