"""`tachograph bisect`: the scale at which a command begins to fail, or the node that makes it fail."""
