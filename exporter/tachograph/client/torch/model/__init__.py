"""What is read from the model and the optimizer being trained."""
