"""`tachograph history`: which nodes, GPUs and links were culprits over weeks, and what precedes failures."""
