"""The stacks of all threads of this process: names of files and functions with line numbers, no values."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType

from tachograph.text.redact import redact

MAX_FRAMES = 60
"""Of one thread, the innermost ones."""

MAX_STACKS = 256
"""Different stacks; threads that stand at the same lines share one."""

MAX_NAMES = 64
"""Threads named at one stack."""

_COMPILES = (
    ("torch/_dynamo/convert_frame.py", ""),
    ("torch/_inductor/compile_fx.py", "compile"),
    ("torch/_inductor/async_compile.py", ""),
    ("torch/utils/cpp_extension.py", ""),
    ("triton/compiler/compiler.py", "compile"),
)
"""File and part of a function's name that are on the stack while a compiler runs, and not while its product does."""

_COMPILERS = ("/torch/_dynamo/", "/torch/_inductor/")
"""Packages that the first compilation imports, within a step: seconds of a busy machine, more from a shared disk."""


def stacks(training: int) -> list[dict[str, object]]:
    """Return the stack of each thread but the one that asks, innermost line first; that of `training` comes first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    shown: dict[str, str] = {}
    found: dict[tuple[str, ...], list[int]] = {}
    own = threading.get_ident()
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != training):
        if ident != own:
            found.setdefault(tuple(_lines(frame, shown)), []).append(ident)
    result = []
    for lines, threads in list(found.items())[:MAX_STACKS]:
        one: dict[str, object] = {
            "threads": [redact(names.get(ident, str(ident)))[:64] for ident in threads[:MAX_NAMES]],
            "lines": list(lines),
        }
        if len(threads) > MAX_NAMES:
            one["more_threads"] = len(threads) - MAX_NAMES
        result.append(one)
    if len(found) > MAX_STACKS:
        result.append({"threads": [], "lines": [], "more_stacks": len(found) - MAX_STACKS})
    return result


def is_compiling(thread: int) -> bool:
    """Return whether a thread is inside of a compiler of PyTorch's, or imports one: a step may then take minutes."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        code = frame.f_code
        if any(code.co_filename.endswith(file) and part in code.co_name for file, part in _COMPILES):
            return True
        if code.co_name == "<module>" and any(package in code.co_filename for package in _COMPILERS):
            return True
        frame = frame.f_back
    return False


def _lines(frame: FrameType | None, shown: dict[str, str]) -> Iterator[str]:
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        path = shown.get(code.co_filename)
        if path is None:
            path = shown[code.co_filename] = redact(code.co_filename)
        yield f"{path}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    yield "…"
