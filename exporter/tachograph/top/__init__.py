"""`tachograph top`: a node or a run, now, in a terminal.

`NodeSource` reads an exporter, `RunSource` a Prometheus; both return an `Overview`. `TopApp` shows it live.
"""
