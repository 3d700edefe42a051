"""The front doors that a program may open itself, by `--door`; a program's own text must not name the product.

`tachograph run` looks for its name in a script, and would let a recorder of the script's own come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import tachograph


class ThreeLines:
    """The Recorder of three lines: around the loader, around a step, and the step's loss; without one, nothing."""

    def __init__(self, door: str, **given: Any) -> None:
        self.recorder = tachograph.Recorder(**given) if door == "recorder" else None

    def watch(self, model: Any, optimizer: Any = None) -> None:
        """Watch what is trained."""
        if self.recorder is not None:
            self.recorder.watch(model, optimizer)

    def data(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the loader, recorded or as it is."""
        return loader if self.recorder is None else self.recorder.data(loader)

    @contextmanager
    def step(self, **values: Any) -> Iterator[dict[str, Any]]:
        """Yield what the step will log."""
        with nullcontext() if self.recorder is None else self.recorder.step() as step:
            yield values
            if step is not None:
                step.log(**values)

    def close(self) -> None:
        """End the record."""
        if self.recorder is not None:
            self.recorder.close()


def lightning_callbacks(door: str) -> list[Any]:
    """Return Lightning's callback of ours, or none."""
    if door != "callback":
        return []
    from tachograph.integrations.lightning import TachographCallback

    return [TachographCallback()]


def open_trainer(door: str, trainer: Any) -> None:
    """Add Hugging Face's callback of ours, attached or alone, or nothing."""
    if not door:
        return
    from tachograph.integrations.huggingface import TachographCallback

    if door == "attached":
        TachographCallback().attach(trainer)
    else:
        trainer.add_callback(TachographCallback())
