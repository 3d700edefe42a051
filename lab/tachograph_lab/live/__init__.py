"""Simulated fleets behind real exporters, in real time."""
