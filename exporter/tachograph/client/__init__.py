"""The part that a training process imports: standard library only; torch is used only if already loaded."""
