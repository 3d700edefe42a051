"""What `tachograph-lab` runs, one file for each command."""
