"""`tachograph blackbox`: what a run's ranks left behind when it stopped, and what that says."""
