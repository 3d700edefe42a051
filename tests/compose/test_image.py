"""The image: its base and its dependencies are pinned, and it has no installer."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "exporter/Dockerfile").read_text(encoding="utf-8")
LOCKS = ("requirements.lock", "build.lock")
ON_LINUX = {"python_version": "3.13", "python_full_version": "3.13.0", "sys_platform": "linux",
            "platform_system": "Linux"}  # fmt: skip


def stages() -> list[list[str]]:
    """Return the instructions of each stage."""
    lines = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    starts = [i for i, line in enumerate(lines) if line.startswith("FROM")]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


def commands(stage: Iterable[str], word: str = "RUN") -> list[list[str]]:
    """Return the commands of a stage, each a list of words that no shell interprets."""
    return [json.loads(line.removeprefix(word)) for line in stage if line.startswith(f"{word} ")]


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes by package."""
    text = (ROOT / "exporter" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            package = re.match(
                r"([a-z0-9][a-z0-9._-]*)==([0-9][\w.]*)(?: ; [^-]*)?((?: +--hash=sha256:[0-9a-f]{64})+) *$", line
            )
            assert package, line
            found[canonicalize_name(package[1])] = (package[2], package[3].split())
    return found


def wanted(pattern: str) -> list[Requirement]:
    """Return the requirements of the lists in pyproject.toml that a pattern finds; Python 3.10 reads no TOML."""
    found = re.findall(pattern, (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    assert found
    return [Requirement(text) for one in found for text in json.loads(re.sub(r",\s*\]", "]", one))]


RUNTIME, BUILD = r"^(?:exporter|tools) = (\[.*?\])", r"^\[build-system\]\nrequires = (\[.*?\])"


def test_the_base_is_pinned_by_digest() -> None:
    """Both stages use one image that cannot change under its tag."""
    base = re.findall(r"^ARG BASE=(.*)$", DOCKERFILE, re.M)
    assert len(base) == 1
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-[a-z]+@sha256:[0-9a-f]{64}", base[0])
    assert [stage[0] for stage in stages()] == ["FROM ${BASE} AS build", "FROM ${BASE}"]


@pytest.mark.parametrize(("lock", "pattern"), [("requirements.lock", RUNTIME), ("build.lock", BUILD)])
def test_every_dependency_is_locked_with_hashes(lock: str, pattern: str) -> None:
    """A dependency, direct or not, that was added or raised in pyproject.toml without `make lock` fails here."""
    known, ahead, seen = locked(lock), wanted(pattern), set()
    while ahead:
        one = ahead.pop()
        name = canonicalize_name(one.name)
        assert name in known, f"{name} is not in exporter/{lock}: make lock"
        version, hashes = known[name]
        assert one.specifier.contains(version), f"{name} {version} is not {one.specifier}: make lock"
        assert hashes
        if name not in seen or one.extras:
            seen.add(name)
            try:
                more = [Requirement(text) for text in requires(name) or ()]
            except PackageNotFoundError:
                continue  # what only builds is not installed here
            environments = [{**ON_LINUX, "extra": extra} for extra in one.extras or {""}]
            ahead += [each for each in more if each.marker is None or any(map(each.marker.evaluate, environments))]
    assert seen == set(known), "nothing is installed that nothing needs"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index(lock: str) -> None:
    """The builder chooses the index; the hashes hold for any."""
    text = (ROOT / "exporter" / lock).read_text(encoding="utf-8")
    assert "make lock" in text
    assert not re.search(r"://|index-url|find-links|trusted-host", text)


def test_nothing_is_installed_without_a_hash() -> None:
    """Pip installs locked files only, runs no code of a source package, and fetches nothing else for the build."""
    build, _ = stages()
    assert any("PIP_ONLY_BINARY=:all:" in line for line in build)
    installs = [words for words in commands(build) if "install" in words or "wheel" in words[:2]]
    assert len(installs) == 4
    for words in installs:
        locked_files = "--require-hashes" in words and words[-2] == "-r" and words[-1] in LOCKS
        own = {"--no-deps", "--no-build-isolation"} <= set(words) or {"--no-deps", "--no-index"} <= set(words)
        assert locked_files or own, words


def test_the_final_stage_has_no_installer() -> None:
    """Neither the environment nor the base keeps pip, setuptools or ensurepip; nothing is run there after that."""
    build, final = stages()
    assert ["python", "-m", "venv", "--without-pip", "/opt/tachograph"] in commands(build)
    assert not {"pip", "setuptools"} & set(locked("requirements.lock"))
    removal, folder = commands(final)
    assert removal[:2] == ["/usr/local/bin/python", "-c"]
    assert "'pip', 'uninstall', '--yes', 'pip'" in removal[2]
    assert "shutil.rmtree(ensurepip.__path__[0])" in removal[2]
    assert folder[0] == "install"
    compile(removal[2], "Dockerfile", "exec")


def test_make_lock_is_what_wrote_the_locks() -> None:
    """The target reads pyproject.toml, for Debian's Python and all newer ones as the image's, and asks for hashes.

    The package for distributions with Python 3.10 has a lock of its own.
    """
    done = subprocess.run(["make", "-n", "lock"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    image = re.search(r"python:(3\.\d+)\.", DOCKERFILE)
    assert image
    runs = [line for line in done.stdout.splitlines() if "uv pip compile" in line]
    assert len(runs) == 3
    assert all("--generate-hashes" in line for line in runs)
    for line in (line for line in runs if "deploy/debian/" not in line):
        assert "--generate-hashes" in line
        assert "--universal" in line
        oldest = re.search(r"--python-version (3\.\d+) ", line)
        assert oldest
        assert oldest[1] <= image[1]
