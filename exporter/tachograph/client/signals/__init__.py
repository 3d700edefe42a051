"""Signals that a rank derives from its own steps: loss spikes, gradient norms, goodput, invariants."""
