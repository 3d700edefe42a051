"""Exposed wait for collectives under any parallelism, measured where PyTorch itself waits."""
