"""Records every training of an environment: this folder on PYTHONPATH is the whole switch (docs/auto.md).

Every Python of that environment runs this at its start, also those that never train: so it is short, imports nothing
that is not there already, and is written so that every Python can read it, though only 3.10 and later record.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
WATCHED = ("torch", "tachograph.client.recorder")


class TorchHook(object):
    """Acts once PyTorch, or a recorder of the program's own, has been imported; finds what the other finders find."""

    act = None

    def find_spec(self, name, path=None, target=None):
        """Return the spec of these two modules, hooked; None for every other."""
        if name not in WATCHED:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                try:
                    self.hook(spec)
                except Exception:
                    pass
                return spec
        return None

    def hook(self, spec):
        """Have this spec's loader, which is the module's own, act after it has executed the module."""
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            if module.__name__ == spec.name:
                loader.__dict__.pop("exec_module", None)
                self.imported(module)

        if not isinstance(loader, type):  # else it is that of all frozen modules
            loader.exec_module = exec_module

    def imported(self, module):
        """Act on a module, with what lies beside this file in a copy of the folder, else in the package around it."""
        if self.act is None:
            self.act = id  # if the rest fails
            try:
                package = os.path.join(FOLDER, "site-packages", "tachograph")
                if not os.path.isdir(package):
                    package = os.path.dirname(os.path.dirname(FOLDER))
                from importlib.util import module_from_spec, spec_from_file_location

                spec = spec_from_file_location("_tachograph_copied", os.path.join(package, "auto", "copied.py"))
                copied = module_from_spec(spec)
                spec.loader.exec_module(copied)
                self.act = copied.Imports(package)
            except Exception:
                pass
        self.act(module)


def _arm():
    if sys.version_info < (3, 10) or os.environ.get("TACHOGRAPH_DISABLED", "") not in ("", "0"):
        return
    if any(type(finder).__name__ == "TorchHook" for finder in sys.meta_path):  # this folder is there twice
        return
    hook = TorchHook()
    sys.meta_path.insert(0, hook)
    for name in reversed(WATCHED):
        if name in sys.modules:
            hook.imported(sys.modules[name])


def _hand_over():
    """Import what this file stands in the place of; without one, this import fails as it would, and is not heard of."""
    places = [(place, entry) for place, entry in enumerate(sys.path) if entry == FOLDER]
    sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
    ours = sys.modules.pop(__name__)  # kept: Python 2 would empty it
    try:
        import sitecustomize  # noqa: F401
    finally:
        for place, entry in places:
            sys.path.insert(place, entry)
        del ours


try:
    _arm()
except Exception:
    pass
_hand_over()
