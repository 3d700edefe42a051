"""A page on one run and one window of time, to attach to a post-mortem."""
