"""The wheel, and environments that have nothing but it and what an extra installs.

No index is asked: an extra is what is installed here, linked into an environment of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
FOLDERS = ("exporter", "prometheus", "alertmanager", "grafana/dashboards", "runbooks")
SDIST = "import setuptools.build_meta as build; build.build_sdist('dist')"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made from the source distribution of a copy of the sources, without the viewer."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "viewer")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    done([sys.executable, "-c", SDIST], folder)
    (source,) = (folder / "dist").glob("*.tar.gz")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder / "dist"), str(source))
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes an environment with the wheel and what its extras (`a,b`) install; returns the path of `tachograph`."""

    def make(extras: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, symlinks=True)
        pip("--python", str(folder / "bin/python"), "install", "--no-deps", "--no-index", str(wheel))
        (packages,) = folder.glob("lib/python3.*/site-packages")
        for name in with_dependencies("tachograph", extras) - {"tachograph"}:
            found = distribution(name)
            for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
                if not (packages / top).exists():
                    (packages / top).symlink_to(str(found.locate_file(top)))
        return folder / "bin/tachograph"

    return make


def with_dependencies(name: str, extras: str) -> set[str]:
    """Return a distribution and all that it requires here."""
    found, ahead = set(), [Requirement(f"{name}[{extras}]" if extras else name)]
    while ahead:
        one = ahead.pop()
        found.add(one.name)
        for text in requires(one.name) or ():
            more = Requirement(text)
            wanted = more.marker is None or any(more.marker.evaluate({"extra": each}) for each in one.extras or {""})
            if wanted and (more.name not in found or more.extras):
                ahead.append(more)
    return found


def pip(*arguments: str) -> None:
    done([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments])


def done(command: list[str], folder: Path | None = None) -> None:
    outside = {**os.environ, "PYTHONPATH": ""}  # or pip takes a checkout that it leads to for what is installed
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=folder, env=outside)
    assert ended.returncode == 0, ended.stderr
