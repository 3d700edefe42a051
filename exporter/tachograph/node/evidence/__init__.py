"""What ranks left behind when they stood still, over HTTP: their boxes, what those say, and NCCL's own account."""
