"""The demo: a real training job, five faults, and the pages they cause, as they arrive."""
