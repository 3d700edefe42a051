"""What a rank concludes from its own steps: loss spikes, gradient norms, goodput, invariants."""
