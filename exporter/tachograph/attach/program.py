"""A Python program run in this process as `python script.py` or `python -m module` would run it."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import cast
from zipimport import zipimporter


class NotFoundError(Exception):
    """There is no such program; the text says what was looked for, `status` what Python exits with."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Program:
    """The code of a program, and what its `__main__` has to be."""

    def __init__(self, make: Callable[[], CodeType], module: ModuleType, argument: str, folder: str, text: str) -> None:
        self._make = make  # called late: a syntax error is the program's own, too
        self._text = text
        self._module = module
        self._argument = argument
        self._folder = folder

    @property
    def mentions_tachograph(self) -> bool:
        """Whether the program may have a recorder of its own."""
        return "tachograph" in self._text

    def run(self, arguments: Sequence[str]) -> None:
        """Run it to its end; whatever it raises goes through, with a traceback that begins in the program."""
        sys.argv[:] = [self._argument, *arguments]
        if not getattr(sys.flags, "safe_path", False):  # Python 3.11's -P; sys.path[0] is our own place
            sys.path[0:1] = [self._folder]
        sys.modules["__main__"] = self._module
        try:
            exec(self._make(), self._module.__dict__)
        except BaseException:
            _hide_our_frames()
            raise


def script(path: str) -> Program:
    """Return the program in a file, or in the `__main__` of a folder or a zip archive."""
    place = _named(path)
    importer = pkgutil.get_importer(place)
    if importer is not None:
        spec = importer.find_spec("__main__")
        if spec is None:
            raise NotFoundError(f"can't find '__main__' module in {place!r}", 1)
        return _importable("__main__", spec, path, place)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise NotFoundError(f"can't open file {path!r}: {error.strerror}", 2) from error
    module = _main(place, None)
    module.__loader__ = SourceFileLoader("__main__", place)
    folder, text = str(Path(os.path.realpath(path)).parent), source.decode("utf-8", "replace")
    return Program(lambda: compile(source, place, "exec", dont_inherit=True), module, path, folder, text)


def _named(path: str) -> str:
    """Return a script's path as Python names it: whole, but with every `..`, which behind a link is another folder."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH117, PTH118


def module(name: str) -> Program:
    """Return the program that a module is; that of a package is its `__main__`."""
    sys.path[0:1] = [str(Path.cwd())]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise NotFoundError(f"No module named {name}: {error}", 1) from error
    if spec is None:
        raise NotFoundError(f"No module named {name}", 1)
    return _importable(name, spec, spec.origin or name, str(Path.cwd()))


def _importable(name: str, spec: ModuleSpec, argument: str, folder: str) -> Program:
    """Return the program that is a module: its loader has the code."""
    loader, file = spec.loader, spec.origin or name
    if not isinstance(loader, (InspectLoader, zipimporter)) or isinstance(loader, ExtensionFileLoader):
        raise NotFoundError(f"No code object available for {name}", 1)
    try:
        text = loader.get_source(name) or ""
    except (ImportError, SyntaxError, UnicodeDecodeError):
        text = ""  # it says itself what is wrong with it
    return Program(lambda: cast("CodeType", loader.get_code(name)), _main(file, spec), argument, folder, text)


def _main(file: str, spec: ModuleSpec | None) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = file
    main.__spec__ = spec
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    main.__annotations__ = {}
    main.__cached__ = None if spec is None else spec.cached  # type: ignore[attr-defined]
    main.__package__ = None if spec is None else spec.parent
    if spec is not None:
        main.__loader__ = spec.loader
    return main


def _hide_our_frames() -> None:
    """Have the hook for unhandled exceptions show the traceback as it would be without us."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        clean(error)
        shown(kind, error, error.__traceback__)

    sys.excepthook = hook


def clean(error: BaseException | None) -> None:
    """Take our frames out of an exception's traceback, and of those it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = _without_ours(error.__traceback__)
        error = error.__cause__ or error.__context__


_OURS = str(Path(__file__).resolve().parent.parent) + os.sep


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """Return the frames below `Program.run`, if it is among them, less those of this package."""
    frames: list[TracebackType] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code is Program.run.__code__:
            frames.clear()
        elif not code.co_filename.startswith(_OURS):
            frames.append(traceback)
        traceback = traceback.tb_next
    following: TracebackType | None = None
    for frame in reversed(frames):
        following = TracebackType(following, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return following
