"""A table of what programs, launchers, schedulers and kernels print when a run fails."""
