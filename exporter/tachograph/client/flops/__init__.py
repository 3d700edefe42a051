"""How many FLOPs a step takes."""
