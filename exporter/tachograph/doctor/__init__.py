"""`tachograph doctor`: what is wrong with an installation, from the rank's socket to the page."""
