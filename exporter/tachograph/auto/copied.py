"""The package under a name of its own: a program's `tachograph`, whichever it has installed, stays the program's.

Imports in our modules say `tachograph`. They are executed with an `__import__` of their own, by which that is the copy.
This file is loaded by its path: it imports nothing of ours by name.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType

OURS, COPY = "tachograph", "_tachograph_auto"


class Imports:
    """The act on an import of PyTorch, or of the module that makes recorders: called with the module."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._records_itself = False
        self._step_back: Callable[[], None] | None = None

    def __call__(self, module: ModuleType) -> None:
        """Observe a process that has PyTorch, unless it is, or until it is, recorded by a recorder of its own."""
        try:
            self._act(module)
        except Exception as error:
            if self._is_the_programs(error):
                raise

    def _act(self, module: ModuleType) -> None:
        if module.__name__ != "torch":
            made = getattr(module, "on_created", None)
            if made is None:  # an older release, which loads this only to record
                self._recorder_made()
            else:
                made(self._recorder_made)
        elif self._step_back is None and not self._records_itself:
            self._step_back = _nothing  # if the rest fails
            self._step_back = load(self._package, "auto.begin").begin(module)

    def _is_the_programs(self, error: Exception) -> bool:
        """Return whether a signal handler of the program raised this; if not, tell the exporter."""
        try:
            if load(self._package, "client.core.notice").raised_by_signal(error):
                return True
            load(self._package, "auto.trouble").tell(f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001 - what would say so is broken, too
            pass
        return False

    def _recorder_made(self) -> None:
        self._records_itself = True
        if self._step_back is not None:
            self._step_back()


def _nothing() -> None:
    pass


def load(package: str, module: str) -> ModuleType:
    """Return a module of the package in this folder, by its name there."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(package))
    return importlib.import_module(f"{COPY}.{module}")


class _Finder:
    """Finds the copy's modules in the package's folder."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of one of its modules, None for every other."""
        if name == COPY:
            file = f"{self._package}/__init__.py"
            spec = spec_from_file_location(COPY, file, submodule_search_locations=[self._package])
        elif name.startswith(f"{COPY}."):
            spec = PathFinder.find_spec(name, path)
        else:
            return None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        """Execute a module with our `__import__`."""
        module.__dict__["__builtins__"] = _BUILTINS
        super().exec_module(module)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> ModuleType:
    if not level and (name == OURS or name.startswith(f"{OURS}.")):
        name = COPY + name[len(OURS) :]
    return builtins.__import__(name, globals, locals, fromlist, level)


_BUILTINS = {**vars(builtins), "__import__": _import}
