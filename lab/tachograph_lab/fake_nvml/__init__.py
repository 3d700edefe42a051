"""A C library in the place of libnvidia-ml.so.1, and its controls."""
