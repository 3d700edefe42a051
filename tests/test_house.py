"""Rules of the house that a linter does not know; each names what breaks it, and where."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("exporter/tachograph", "lab/tachograph_lab", "tools")

SHARED = frozenset({"TachographCallback"})
"""Names that two public modules have on purpose: each framework's users know its callback by this one."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield path and syntax tree of every module of the packages."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def test_one_name_is_one_class() -> None:
    """A public class name is defined once, so that a search for it ends at one place."""
    found = defaultdict(list)
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    assert not {name: paths for name, paths in found.items() if len(paths) > 1 and name not in SHARED}


def test_a_class_is_what_it_was_built_as() -> None:
    """Nothing assigns `__class__`."""
    assert not [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "__class__" and isinstance(node.ctx, ast.Store)
    ]


def test_a_docstring_says_what_the_thing_is() -> None:
    """No docstring begins with "What"."""
    assert not [
        f"{path}:{getattr(node, 'lineno', 1)}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (ast.get_docstring(node) or "").startswith("What ")
    ]


def test_a_training_process_is_warned_in_one_way() -> None:
    """By `notice`, whose lines begin with "tachograph:" whatever the program's log shows; once on each subject."""
    inside = tuple(f"exporter/tachograph/{part}/" for part in ("client", "integrations", "attach", "auto"))
    assert [
        path
        for path, tree in modules()
        if path.startswith(inside)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".warning", ".warn", ".error"))
    ] == ["exporter/tachograph/client/core/notice.py"]


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
