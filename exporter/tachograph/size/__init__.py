"""The resources that a fleet needs, scaled from measured rows."""
