"""The only door to the NVIDIA driver, and recordings of what it answers."""
