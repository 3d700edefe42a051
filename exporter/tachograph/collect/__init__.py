"""`tachograph blackbox`: asks the ranks of a run for their evidence, collects it, and says who holds the run up."""
