"""Metrics to MLflow."""

from __future__ import annotations

import math

from tachograph.export.sinks.mailbox import Mailbox, MetricsFrame

BATCH_LIMIT = 1000
"""Metrics that one request of MLflow's REST API may carry."""


class MlflowSink:
    """Writes a rank's metrics to an MLflow run as `tachograph/<metric>`; NaN and infinity are left out.

    Without `run_id` it is the run that is active where the sink is made (MLflow's active run belongs to a thread); a
    process without one sends nothing, and logs that once. `tracking_uri`: else as MLflow finds it
    (`MLFLOW_TRACKING_URI`). `seconds` apart at least. Raises ImportError where mlflow is missing.
    """

    def __init__(self, run_id: str | None = None, tracking_uri: str | None = None, seconds: float = 10.0) -> None:
        self._run_id = run_id if run_id is not None else _active_run_id()
        self._tracking_uri = tracking_uri
        mailbox = Mailbox("mlflow", self._send, seconds)
        self.write, self.close = mailbox.write, mailbox.close

    def _send(self, frame: MetricsFrame) -> None:
        if self._run_id is None:
            raise LookupError("no MLflow run was active when the sink was made")
        from mlflow.client import MlflowClient
        from mlflow.entities import Metric

        milliseconds = int(frame.time * 1000)
        metrics = [
            Metric(f"tachograph/{key}", value, milliseconds, frame.step)
            for key, value in frame.metrics.items()
            if math.isfinite(value)
        ]
        client = MlflowClient(self._tracking_uri)
        for start in range(0, len(metrics), BATCH_LIMIT):
            client.log_batch(self._run_id, metrics[start : start + BATCH_LIMIT])


def _active_run_id() -> str | None:
    import mlflow

    run = mlflow.active_run()
    return None if run is None else str(run.info.run_id)
