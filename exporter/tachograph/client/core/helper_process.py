"""Processes that a training starts to work for it, in which its script may make a `Recorder` once more."""

from __future__ import annotations

import sys


def is_helper() -> bool:
    """Return whether this process imports the script of another one again, or loads data for it: it is no rank.

    What is spawned, and the server that others are forked from, does that before its work, and `multiprocessing` marks
    the process while it does. A loader's worker is known by PyTorch, which is asked only where it is loaded.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        return True
    workers = sys.modules.get("torch.utils.data._utils.worker")
    return workers is not None and workers.get_worker_info() is not None
