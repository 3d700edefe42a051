"""Rules of the house that a linter does not know; each names what breaks it, and where."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("exporter/tachograph", "lab/tachograph_lab", "tools")

SHARED = frozenset({"TachographCallback"})
"""Names that two public modules have on purpose: each framework's users know its callback by this one."""

INSIDE = tuple(f"exporter/tachograph/{part}/" for part in ("client", "integrations", "attach", "auto"))
"""Folders of what runs in a training process."""


class Modules(NamedTuple):
    """What the rules below look for in the modules of the packages, each with its place."""

    classes: Mapping[str, Sequence[str]]
    reassigned: Sequence[str]
    whats: Sequence[str]
    warning: Sequence[str]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Read every module once."""
    found = Modules(defaultdict(list), [], [], [])
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            look(str(path.relative_to(ROOT)), tree, found)
    return found


def look(path: str, tree: ast.Module, found: Any) -> None:
    """Add what there is to look for in a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found.classes[node.name].append(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr == "__class__" and isinstance(node.ctx, ast.Store):
                found.reassigned.append(f"{path}:{node.lineno}")
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (ast.get_docstring(node) or "").startswith("What "):
                found.whats.append(f"{path}:{getattr(node, 'lineno', 1)}")
        elif isinstance(node, ast.Call) and path.startswith(INSIDE) and warns(node.func):
            found.warning.append(path)


def warns(function: ast.expr) -> bool:
    """Whether a function that is called writes a warning."""
    return ast.unparse(function).endswith((".warning", ".warn", ".error"))


def test_one_name_is_one_class(modules: Modules) -> None:
    """A public class name is defined once, so that a search for it ends at one place."""
    found = modules.classes.items()
    assert not {name: paths for name, paths in found if len(paths) > 1 and name not in SHARED}


def test_a_class_is_what_it_was_built_as(modules: Modules) -> None:
    """Nothing assigns `__class__`."""
    assert not modules.reassigned


def test_a_docstring_says_what_the_thing_is(modules: Modules) -> None:
    """No docstring begins with "What"."""
    assert not modules.whats


def test_a_training_process_is_warned_in_one_way(modules: Modules) -> None:
    """By `notice`, whose lines begin with "tachograph:" whatever the program's log shows; once on each subject."""
    assert modules.warning == ["exporter/tachograph/client/core/notice.py"]


def test_each_fault_is_found() -> None:
    """Each of these rules, broken once."""
    code = 'class A:\n    """What it is."""\n\nA().__class__ = A\nlog.warning("x")\n'
    found = Modules(defaultdict(list), [], [], [])
    look(f"{INSIDE[0]}a.py", ast.parse(code), found)
    assert found == ({"A": [f"{INSIDE[0]}a.py"]}, [f"{INSIDE[0]}a.py:4"], [f"{INSIDE[0]}a.py:1"], [f"{INSIDE[0]}a.py"])


def test_collecting_the_tests_imports_no_pytorch() -> None:
    """Each worker collects every file, and would import it for seconds: a test or a fixture does, where it needs it."""
    paths = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests").rglob("conftest.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    named = re.compile(r"(?m)^(import|from) torch|^\S.*[\"']torch")
    suspects = {path: text for path, text in texts.items() if named.search(text)}
    assert [str(path.relative_to(ROOT)) for path, text in suspects.items() if imports_torch(text)] == []
    assert imports_torch("import torch") == imports_torch("from torch import nn") == [1]
    assert imports_torch('import pytest\ntorch = pytest.importorskip("torch")') == [2]
    assert imports_torch('CODE = """\nimport torch\n"""\ndef f():\n    import torch\n') == []


def imports_torch(text: str) -> list[int]:
    """Return the lines by which a module imports PyTorch as it is imported itself."""
    return [
        node.lineno
        for node in ast.parse(text).body
        if not isinstance(node, ast.FunctionDef | ast.ClassDef)
        and re.match(r"(import|from) torch\b|.*importorskip\('torch", ast.unparse(node))
    ]


def test_programs_of_tests_begin_with_no_signal_ignored() -> None:
    """In the background of a shell, or under nohup, SIGINT and SIGHUP are ignored, and so by what is started there."""
    code = (
        "import subprocess; from tests.conftest import pytest_configure; pytest_configure(); "
        "subprocess.run(['grep', 'SigIgn', '/proc/self/status'], check=True)"
    )
    ignored = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    done = subprocess.run(
        ["sh", "-c", f"trap '' {' '.join(str(int(each)) for each in ignored)}; exec {sys.executable} -c \"{code}\""],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    mask = int(done.stdout.split()[1], 16)
    assert not [each.name for each in ignored if mask >> (each - 1) & 1]
