"""Rules broken one at a time: some test must notice."""
