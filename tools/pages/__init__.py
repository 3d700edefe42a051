"""Generators of the pages in docs/, of the map of packages, and of the DCGM rules."""
