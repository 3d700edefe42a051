"""`tachograph preflight`: what would stop or slow a training run on these nodes, found before it starts."""
