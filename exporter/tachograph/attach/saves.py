"""The checkpoints of a script: all files saved between two moments of training are one, however they are written.

A state that was serialised into memory is one if the script then opened a file for writing, in the same thread, that is
as long; an upload ends one later.
"""

# ruff: noqa: ANN401 - what PyTorch hands over has no type here

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

from tachograph.client.recorder import Recorder

MOST_FILES = 64
"""Files remembered that may hold what was serialised."""

LOOK_SECONDS = 0.2
"""The longest that a script's end waits for a file system to say how long a file is."""


class Saved(NamedTuple):
    """The outcome of a save: whether a script can go on from it, where to, and how many bytes if that is memory."""

    kept: bool
    path: Any = None
    size: int | None = None


class Saves:
    """Saves under way, and those that ended and are not yet reported.

    `open`: something was saved since the last moment of training; `in_memory`: into memory, and no file holds it yet.
    """

    def __init__(self) -> None:
        self.open = False
        self._depth = 0
        self._failed = False
        self._saved: tuple[int, Any] | None = None
        self._serialised: Serialised | None = None
        self._later: list[tuple[int, Any, Any]] = []

    @property
    def pending(self) -> bool:
        """Whether there is anything to close, or to hear of."""
        return self.open or bool(self._later)

    @property
    def in_memory(self) -> bool:
        """Whether the next file that is opened for writing may hold what was serialised."""
        return self._serialised is not None and not self._depth

    def begin(self) -> bool:
        """Count a save that begins; return whether it is the outermost: a distributed save calls torch.save, too."""
        self._depth += 1
        return self._depth == 1

    def end(self) -> bool:
        """Count its end; return whether it was the outermost."""
        self._depth -= 1
        self.open = True
        return not self._depth

    def keep(self, step: int, saved: Saved, upload: Any = None) -> None:
        """Remember a save of the state after `step`; `upload` is the future of a later end."""
        if not saved.kept:
            return
        if upload is not None:
            self._later.append((step, saved.path, upload))
        elif saved.size is not None:
            self._serialised = Serialised(step, saved.size)
        else:
            self._saved = step, saved.path

    def fail(self) -> None:
        """Note that a part could not be saved: the whole is no checkpoint."""
        self._failed = True

    def opened(self, path: str) -> None:
        """Note a file that was opened for writing."""
        if self._serialised is not None and len(self._serialised.paths) < MOST_FILES:
            self._serialised.paths.append(path)

    def close(self, recorder: Recorder, *, wait: bool = False) -> int:
        """Report what was saved, as training goes on; return how many checkpoints were reported.

        Also those whose upload has ended since the last call, or whose file was found; `wait` for a file's length.
        """
        saved, serialised, failed = self._saved, self._serialised, self._failed
        self.open, self._failed, self._saved, self._serialised = False, False, None, None
        reported = 0
        if saved is not None and not failed:
            recorder.checkpoint_saved(saved[0], path=saved[1])
            reported += 1
        elif serialised is not None and serialised.paths and not failed:
            serialised.look()
            if wait:
                serialised.wait()
            self._later.append((serialised.step, None, serialised))
        for step, path, upload in [each for each in self._later if each[2].done()]:
            self._later.remove((step, path, upload))
            if upload.cancelled() or upload.exception() is not None:
                recorder.checkpoint_failed()
            elif not isinstance(upload, Serialised) or (path := upload.path) is not None:
                recorder.checkpoint_saved(step, path=path)
                reported += 1
        return reported


class Serialised:
    """A state in memory, and the files that may have been written from it; looks them up in a thread of its own.

    A file system that hangs keeps that thread, and no one else. It is asked as a future is.
    """

    def __init__(self, step: int, size: int) -> None:
        self.step = step
        self.paths: list[str] = []
        self.path: str | None = None
        self._size = size
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begin to look for a file that is long enough."""
        self._thread = threading.Thread(target=self._find, name="tachograph-saves", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for it for a moment."""
        if self._thread is not None:
            self._thread.join(LOOK_SECONDS)

    def done(self) -> bool:
        """Whether the look has ended."""
        return self._thread is not None and not self._thread.is_alive()

    def cancelled(self) -> bool:
        """Whether it was given up: never."""
        return False

    def exception(self) -> None:
        """Return what it failed with: nothing."""

    def _find(self) -> None:
        for path in reversed(self.paths):
            try:
                if os.stat(path).st_size >= self._size:  # noqa: PTH116 - as the script named it
                    self.path = path
                    return
            except (OSError, ValueError):
                continue
