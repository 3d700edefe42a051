"""Everything that touches PyTorch; it is never imported here, only looked at once the script has."""
