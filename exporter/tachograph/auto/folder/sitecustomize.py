"""Records every training of an environment: this folder on PYTHONPATH is the whole switch (docs/auto.md).

Every Python of that environment runs this at its start, those that never train included: so it is one file, imports
nothing that is not there already, and is written so that every Python can read it, though only 3.10 and later record.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
RECORDER = "tachograph.client.recorder"


class TorchHook(object):
    """Acts once PyTorch, or a recorder of the program's own, has been imported; finds what the other finders find."""

    def __init__(self):
        self.records_itself = False
        self.step_back = None

    def find_spec(self, name, path=None, target=None):
        """Return the spec of these two modules, hooked; None for every other."""
        act = self.on_torch if name == "torch" else self.on_recorder if name == RECORDER else None
        if act is None:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                try:
                    _call_after(spec, act)
                except Exception:
                    pass
                return spec
        return None

    def on_torch(self, torch):
        """Observe this process from now on, unless it is recorded by a recorder of its own."""
        if self.step_back is not None or self.records_itself:
            return
        self.step_back = _disarmed
        package = os.path.join(FOLDER, "site-packages", "tachograph")
        if not os.path.isdir(package):  # not a copy: the folder in the package itself
            package = os.path.dirname(os.path.dirname(FOLDER))
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("_tachograph_copied", os.path.join(package, "auto", "copied.py"))
        copied = module_from_spec(spec)
        spec.loader.exec_module(copied)
        try:
            self.step_back = copied.load(package, "auto.begin").begin(torch)
        except Exception as error:
            copied.load(package, "auto.trouble").tell("%s: %s" % (type(error).__name__, error))

    def on_recorder(self, module):
        """Step back when the program makes a recorder; of an older release, when it has loaded what makes one."""
        if hasattr(module, "on_created"):
            module.on_created(self.recorder_made)
        else:
            self.recorder_made()

    def recorder_made(self):
        """Record nothing beside the program's own recorder."""
        self.records_itself = True
        if self.step_back is not None:
            self.step_back()


def _disarmed():
    pass


def _call_after(spec, act):
    loader = spec.loader
    execute = loader.exec_module
    if isinstance(loader, type):  # of all frozen modules
        return

    def exec_module(module):
        execute(module)
        if module.__name__ == spec.name:
            try:
                loader.__dict__.pop("exec_module", None)
                act(module)
            except Exception:
                pass

    loader.exec_module = exec_module


def _arm():
    if sys.version_info < (3, 10) or os.environ.get("TACHOGRAPH_DISABLED", "") not in ("", "0"):
        return
    if any(type(finder).__name__ == "TorchHook" for finder in sys.meta_path):  # this folder is there twice
        return
    hook = TorchHook()
    sys.meta_path.insert(0, hook)
    if RECORDER in sys.modules:
        hook.on_recorder(sys.modules[RECORDER])
    if "torch" in sys.modules:
        hook.on_torch(sys.modules["torch"])


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
