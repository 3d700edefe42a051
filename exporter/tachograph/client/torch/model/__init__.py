"""Measurements of the model and the optimizer being trained."""
