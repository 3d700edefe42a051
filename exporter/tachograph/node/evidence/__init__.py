"""The evidence that ranks leave when they stand still, over HTTP: boxes, what these say, and NCCL's own account."""
