"""`tachograph top`: what a node or a run does now, in a terminal.

`NodeSource` asks an exporter, `RunSource` a Prometheus; both give `Facts`. `screen` makes lines of them, `live` keeps
them current and listens to keys.
"""
