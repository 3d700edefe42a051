"""Tachograph's lab: incidents replayed in virtual time or live, simulated fleets, the demo. Not part of the wheel."""
