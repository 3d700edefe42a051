"""The contents of a rank's hello frame: its identity, its batch job, its devices and its workload."""
