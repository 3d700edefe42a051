"""What a training process imports: standard library only, torch touched only where it is already loaded."""
