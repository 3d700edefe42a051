"""`tachograph compare`: two runs, or one before and after a moment, and whether the second is worse."""
