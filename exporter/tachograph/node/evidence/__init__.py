"""The evidence that ranks left when they stood still, over HTTP: their boxes, what those say, and NCCL's own account."""
