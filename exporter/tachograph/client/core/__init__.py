"""What every step passes through: the clock of phases, steps, scalars and counters."""
