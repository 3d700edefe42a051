"""The tokens that a trainer of TRL counts itself: those of prompts and samples, over all ranks."""

# ruff: noqa: ANN401 - what is hooked is not imported here, and has no type

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tachograph.client.recorder import Recorder


class CountedTokens:
    """The share of this rank, in this attempt; a source of the recorder's."""

    def __init__(self) -> None:
        self._count = 0.0
        self._recorder: Recorder | None = None

    def take(self, recorder: Recorder, trainer: Any) -> None:
        """Read a trainer's count, which goes on where a checkpoint ended."""
        before = getattr(trainer, "_initial_num_input_tokens_seen", 0)
        self._count = (trainer.state.num_input_tokens_seen - before) / trainer.args.world_size
        if recorder is not self._recorder:
            self._recorder = recorder
            recorder.add_source(self)

    def metrics(self) -> Iterable[tuple[str, object]]:
        """Yield the counter."""
        yield "tokens_total", self._count
