"""`tachograph triage`: what is wrong with a run, in the order in which a person would ask, and what to do next."""
