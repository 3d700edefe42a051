"""Metrics to TensorBoard, as event files in a folder (needs the extra `tachograph[tensorboard]`)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from tachograph.export.sinks.mailbox import Mailbox, MetricsFrame


class TensorBoardSink:
    """Writes a rank's metrics to event files in `folder` as `tachograph/<metric>`, over the step and the time.

    The curves of a folder are one rank's: give the sink to rank 0 alone, or each rank a folder of its own. `seconds`
    apart at least. Raises ImportError, with what to install, if TensorBoard is missing.
    """

    def __init__(self, folder: str | os.PathLike[str], seconds: float = 10.0) -> None:
        if find_spec("tensorboard") is None:
            from tachograph import extras

            raise ImportError(f"TensorBoardSink needs TensorBoard: {extras.command('tensorboard')}")
        self._folder = os.fspath(folder)
        self._file: Any = None
        self._mailbox = Mailbox("tensorboard", self._send, seconds)
        self.write = self._mailbox.write

    def close(self) -> None:
        """Write what is left."""
        self._mailbox.close()
        if self._file is not None:
            self._file.close()

    def _send(self, frame: MetricsFrame) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._file is None:
            self._file = EventFileWriter(self._folder)
        values = [Summary.Value(tag=f"tachograph/{key}", simple_value=value) for key, value in frame.metrics.items()]
        self._file.add_event(Event(wall_time=frame.time, step=frame.step, summary=Summary(value=values)))
        self._file.flush()
