"""Other places that a rank's metrics can go to besides Prometheus, each off unless given to the Recorder.

    from tachograph.export.sinks.wandb import WandbSink

    recorder = tachograph.Recorder(run="llama-7b", sinks=[WandbSink()])

Each takes the same frame that the exporter gets, at its own pace and in a thread of its own: a slow or dead service
costs nothing but its own data. No library is loaded until a sink of it is made.
"""
