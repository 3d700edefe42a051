"""Metrics to Weights & Biases, beside what the training code logs there itself."""

from __future__ import annotations

from typing import Any

from tachograph.export.sinks.mailbox import Mailbox, MetricsFrame

PREFIX = "tachograph/"


class WandbSink:
    """Writes a rank's metrics to a W&B run as `tachograph/<metric>`, over the axis `tachograph/step`.

    The numbers join the training code's next `run.log`, or the run's end: a line of history of their own would move
    W&B's step on, and the training code's next explicit `step=` would be refused as going back. Without `run` it is the
    one that `wandb.init` made, looked for at each frame; a process without one sends nothing, so rank 0 alone can call
    `wandb.init` while all ranks have the sink. `seconds` apart at least.
    """

    def __init__(self, run: Any = None, seconds: float = 10.0) -> None:  # noqa: ANN401 - wandb.Run, not imported here
        self._run = run
        self._defined: Any = None
        mailbox = Mailbox("wandb", self._send, seconds)
        self.write, self.close = mailbox.write, mailbox.close

    def _send(self, frame: MetricsFrame) -> None:
        import wandb

        run = self._run if self._run is not None else wandb.run
        if run is None:
            return
        if run is not self._defined:
            run.define_metric(f"{PREFIX}step", hidden=True)
            run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
            self._defined = run
        values = {PREFIX + key: value for key, value in frame.metrics.items()}
        run.log({f"{PREFIX}step": frame.step, **values}, commit=False)
