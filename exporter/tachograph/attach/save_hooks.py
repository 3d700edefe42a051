"""The hooks into what saves: `torch.save`, distributed checkpoints, safetensors, and files that are written afterwards.

A state that is serialised into memory is in a file later, by whatever writes it: from then on Python's own audit of
opened files is listened to, which costs 0.1 microseconds for each.
"""

# ruff: noqa: ANN401 - PyTorch is not imported here, and has no type

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tachograph.attach.in_place import in_place_of
from tachograph.attach.observer import Observer
from tachograph.attach.on_import import when_imported
from tachograph.attach.saves import Saved

WRITES = os.O_WRONLY | os.O_RDWR
MOST_PARTS = 64
"""Parts of what was saved that are looked at: a list may have millions."""


def hook_saves(torch: Any, observer: Observer) -> None:
    """Have every save reported to `observer`."""

    def saved(_: Any, obj: Any, f: Any, *__: Any, **___: Any) -> Saved:
        kept = _holds_state(torch, obj)
        if isinstance(f, io.BytesIO):
            return Saved(kept, None, f.getbuffer().nbytes)
        return Saved(kept, f if _is_path(f) else _path_of(f, "name"))

    torch.save = _observed(torch.save, observer, saved)
    torch.serialization.save = torch.save  # the name it is pickled by
    when_imported("torch.distributed.checkpoint.state_dict_saver", lambda saver: _distributed(saver, observer))
    when_imported("safetensors.torch", lambda library: _safetensors(library, observer))


def _holds_state(torch: Any, saved: Any) -> bool:
    """Whether a script may go on from what it saved: a mapping, a module, or things of which one holds weights."""
    if isinstance(saved, (Mapping, torch.nn.Module)):
        return True
    parts = saved if isinstance(saved, (list, tuple)) else getattr(saved, "__dict__", {}).values()
    return any(
        isinstance(part, torch.nn.Module)
        or (isinstance(part, Mapping) and any(map(torch.is_tensor, itertools.islice(part.values(), MOST_PARTS))))
        for part in itertools.islice(parts, MOST_PARTS)
    )


def _distributed(saver: Any, observer: Observer) -> None:
    def saved(_: Any, *__: Any, checkpoint_id: Any = None, storage_writer: Any = None, **___: Any) -> Saved:
        return Saved(True, checkpoint_id if _is_path(checkpoint_id) else _path_of(storage_writer, "path"))

    saver.save = _observed(saver.save, observer, saved)
    saver.async_save = _observed(saver.async_save, observer, saved)


def _safetensors(library: Any, observer: Observer) -> None:
    def to_file(_: Any, tensors: Any, filename: Any, *__: Any, **___: Any) -> Saved:
        return Saved(True, filename)

    def to_memory(serialised: bytes, *_: Any, **__: Any) -> Saved:
        return Saved(True, None, len(serialised))

    library.save_file = _observed(library.save_file, observer, to_file)
    library.save = _observed(library.save, observer, to_memory)


def _observed(original: Callable[..., Any], observer: Observer, describe: Callable[..., Saved]) -> Any:
    """Return `original` as phase `checkpoint`; a future that it returns is the end of the upload.

    `describe` tells, by its result and its arguments, what was saved.
    """

    @in_place_of(original)
    def save(*arguments: Any, **named: Any) -> Any:
        if not observer.saving():
            return original(*arguments, **named)
        try:
            result = original(*arguments, **named)
        except BaseException as error:
            observer.save_failed(error)
            raise
        upload = getattr(result, "upload_completion", result)
        observer.saved(
            lambda: describe(result, *arguments, **named), upload if hasattr(upload, "add_done_callback") else None
        )
        if observer.watches_files:
            _listen_to_files(observer)
        return result

    return save


_listened_to: list[Observer] = []


def _listen_to_files(observer: Observer) -> None:
    """Report each file that is opened for writing, or moved into place, from now on: an audit hook stays for good."""
    if observer in _listened_to:
        return
    _listened_to.append(observer)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if not observer.watches_files:
            return
        if event == "open":
            path, _, flags = arguments
            if _is_path(path) and flags & WRITES:
                observer.file_opened(path)
        elif event == "os.rename" and _is_path(arguments[1]):
            observer.file_opened(arguments[1])

    sys.addaudithook(heard)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _path_of(value: Any, attribute: str) -> Any:
    """Return the path that an open file, or a writer of checkpoints, has as an attribute; None without one."""
    path = getattr(value, attribute, None)
    return path if _is_path(path) else None
