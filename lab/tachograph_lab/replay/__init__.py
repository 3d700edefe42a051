"""Incidents replayed through the shipped rules and routes: in virtual time, or live."""
