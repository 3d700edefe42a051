"""Generators of the pages in docs/ and of the DCGM rules."""
