"""Runs a program as Python does with our folder on PYTHONPATH, in a process that has started without."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys

from tachograph.auto.command import FOLDER

sys.modules.pop("sitecustomize", None)
sys.path.insert(1, os.fspath(FOLDER))
with contextlib.suppress(ImportError):
    import sitecustomize  # noqa: F401

del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120
    runpy.run_path(sys.argv[0], run_name="__main__")
