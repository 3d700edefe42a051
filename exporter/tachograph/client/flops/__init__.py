"""Floating-point operations per token and per step."""
