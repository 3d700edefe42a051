"""Sampled steps as traces: where inside a step the time goes, on one rank, in Perfetto or any OTLP backend.

    from tachograph.export.traces import Traces

    traces = Traces(every=500, chrome=f"/var/log/training/rank{rank}.trace.json")
    recorder = tachograph.Recorder(run="llama-7b", trace=traces)

A trace of every 500th step, and of the steps around an alert: whoever gets the page (a person, a webhook) touches the
file `trigger`. Off unless asked for; without it a phase costs nothing more.
"""

from __future__ import annotations

from tachograph.export.traces.traces import Traces

__all__ = ["Traces"]
