"""Every fact about every metric: one row for each."""
