"""The texts of panels that have nothing to show, if several share them: what is missing, and what provides it.

tests/grafana/test_absences.py compares the calls that are named with what each way in gives (tools/pages/ways_in.py).
"""

from __future__ import annotations

NO_RANK = "no rank seen"
NO_WAITS = "no step completed, or no waits measured: needs watch(model), collective(…) or attach(trainer)"
NO_COORDINATES = (
    "no steps now, no such parallelism, or no waits measured: needs watch(model) of a model on a named mesh, or "
    "Recorder(mesh=…)"
)
NO_LOADER = "no step completed lately, or no loader recorded: needs data(loader) or attach(trainer)"
NO_LOSS = "not collected: no finite loss is logged"
NO_MFU = "no step completed, or not collected: needs flops_per_token or flops_per_step, and a known peak"
UNSAVED = "no checkpoint has been saved, or none is reported: needs checkpoint_saved(…)"
UNTIMED = 'no checkpoint has been saved, or none is timed: needs phase("checkpoint")'
DETAIL = "not collected: the exporter runs without --rank.series=all"
NO_HOST = "not collected: no node_exporter is scraped"
NO_PRESSURE = "not collected: no node_exporter with its pressure collector is scraped"
