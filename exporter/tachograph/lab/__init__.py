"""Simulated faults, the local Prometheus stack, and the demo."""
