"""What is known of the texts that programs, launchers, schedulers and kernels print when a run fails: a table."""
