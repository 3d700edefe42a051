"""What a rank says of itself once, at the start: who it is, in which job, and what it trains."""
