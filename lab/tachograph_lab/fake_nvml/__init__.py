"""A fake libnvidia-ml.so.1 in C, and its controls."""
