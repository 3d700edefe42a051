"""Other places for the same numbers: sinks, traces, structured logs."""
