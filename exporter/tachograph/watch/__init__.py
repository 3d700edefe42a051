"""`tachograph run --watch`: an exporter of its own beside one program, and at the end what it measured of the run."""
