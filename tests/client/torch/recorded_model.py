"""A model with a recorder in it, which a pickle finds by its name."""

from __future__ import annotations

from typing import Any

import torch

from tachograph.client.recorder import Recorder


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model that holds all it was given of a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.recorder = recorder
        self.step = recorder.step()
        self.phase = recorder.phase("forward")
        self.mark = recorder.collective("all_reduce")
        self.batches = recorder.data([1, 2])

    def forward(self, x: Any) -> Any:
        with self.recorder.phase("forward"):
            return self.layer(x)
