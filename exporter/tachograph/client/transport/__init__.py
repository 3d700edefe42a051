"""Transport of a rank's metrics out of its process: frames, sender thread, sinks, shutdown."""
