"""Recording in one line from a framework's own hooks: Hugging Face, Lightning, Accelerate."""
