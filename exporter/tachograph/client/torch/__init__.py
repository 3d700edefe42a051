"""Everything that touches PyTorch, which is never imported here: it is used once the script has loaded it."""
