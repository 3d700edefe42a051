"""Doing something once a module has been imported by someone else: a script's order of imports is left as it is."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from tachograph.client.core.notice import notice


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Call `act` with module `name` once it is imported, at once if it is; an error of `act` is logged, not raised.

    A module that is being imported, as one that imports PyTorch while we are called for that, is waited for: `act` is
    called when the next module after it is imported.
    """
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Finder(name, act))
    elif _is_being_imported(module):
        sys.meta_path.insert(0, _Waiter(module, act))
    else:
        _act(act, module)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))  # as the import system itself asks


class _Waiter(importlib.abc.MetaPathFinder):
    """Finds nothing; notices that a module which was being imported has been."""

    def __init__(self, module: ModuleType, act: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Act once the module is there."""
        if self in sys.meta_path and not _is_being_imported(self._module):
            sys.meta_path.remove(self)
            if sys.modules.get(self._module.__name__) is self._module:  # else its import failed
                _act(self._act, self._module)
        return None


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module by asking the others, until it has been imported: some ask only whether it is installed."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with a loader that acts afterwards; None for every other module."""
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        """Act once, and find nothing any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _act(self._act, module)


class _Loader(importlib.abc.Loader):
    """The module's own loader, and one thing more at the end."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to the module's own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own loader back, execute it, then act."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.imported(module)


def _act(act: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        act(module)
    except Exception as error:  # noqa: BLE001 - a script runs whether we can see into it or not
        notice("attach", f"nothing is seen of {module.__name__}", error)
