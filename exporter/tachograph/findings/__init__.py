"""The kinds of findings about a run, a rank, a GPU, a node or the monitoring itself."""
