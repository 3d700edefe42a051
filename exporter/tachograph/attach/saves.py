"""The checkpoints of a script: the files saved between two steps are one, and an upload may end it later."""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

from typing import Any

from tachograph.client.recorder import Recorder


class Saves:
    """Saves under way, and those that ended and are not yet reported."""

    def __init__(self) -> None:
        self._depth = 0
        self._saved: tuple[int, Any] | None = None
        self._uploads: list[tuple[int, Any, Any]] = []

    def begin(self) -> bool:
        """Count a save that begins; return whether it is the outermost: a distributed save calls torch.save, too."""
        self._depth += 1
        return self._depth == 1

    def end(self) -> bool:
        """Count its end; return whether it was the outermost."""
        self._depth -= 1
        return not self._depth

    def keep(self, step: int, path: Any, upload: Any = None) -> None:
        """Remember a save of the state after `step` to `path`; `upload` is the future of a later end."""
        if upload is None:
            self._saved = step, path
        else:
            self._uploads.append((step, path, upload))

    def report(self, recorder: Recorder) -> None:
        """Report the checkpoint that is complete, and the uploads that have ended since the last call."""
        if self._saved is not None:
            (saved, path), self._saved = self._saved, None
            recorder.checkpoint_saved(saved, path=path)
        for step, path, upload in [each for each in self._uploads if each[2].done()]:
            self._uploads.remove((step, path, upload))
            if upload.cancelled() or upload.exception() is not None:
                recorder.checkpoint_failed()
            else:
                recorder.checkpoint_saved(step, path=path)
