"""`tachograph logs`: the first cause of a failed run, from what ranks, launchers, schedulers and kernels print."""
