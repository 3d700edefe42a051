"""The way of a rank's numbers out of its process."""
