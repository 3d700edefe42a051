"""Tachograph's lab: incidents replayed in virtual time or live, simulated fleets, and the demo. It is never shipped."""
