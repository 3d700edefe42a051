"""The page at /: what this node does, and what is wrong, for a person."""
