"""Conclusions of a node about its own GPUs: series while there is something to find, and none of a healthy fleet."""
