"""The demo: a real training job, five faults, and their pages as they arrive."""
