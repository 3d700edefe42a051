"""The hot path of every step: phase clock, steps, scalars and counters."""
