"""The commands of `tachograph-lab`, one module each."""
