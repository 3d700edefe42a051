"""`make release`: what it refuses, and that what it builds is the same wherever it is built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph import __version__

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

ENTRY = f"## [Unreleased]\n\n## [{__version__}] - 2026-01-02\n\n- The first.\n"

Release = Callable[..., "subprocess.CompletedProcess[str]"]


def git(folder: Path, *arguments: str) -> str:
    """Run git in a repository as somebody with a name; return what it printed."""
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the files of this one and a changelog that names the version, committed."""
    folder = tmp_path_factory.mktemp("release") / "checkout"
    for name in git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    (folder / "CHANGELOG.md").write_text(ENTRY, encoding="utf-8")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "ready")
    return folder


@pytest.fixture
def checkout(ready: Path, tmp_path: Path) -> Path:
    """A clone of it, to change."""
    git(tmp_path, "clone", "--quiet", str(ready), "clone")
    return tmp_path / "clone"


@pytest.fixture
def release(checkout: Path, tmp_path: Path) -> Release:
    """Runs the command in the clone, with git and without Node.js on the PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").symlink_to(shutil.which("git") or "")
    identity = {f"GIT_{who}_{what}": "test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    packages = os.pathsep.join(str(checkout / name) for name in ("exporter", "lab", "."))
    environment = {**os.environ, **identity, "PATH": str(tmp_path / "bin"), "PYTHONPATH": packages,
                   "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tools.release", *arguments]
        return subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=280
        )

    return run


def refused(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the reasons of a refusal."""
    first, *reasons = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert first == f"{__version__} cannot be released:"
    return [reason.strip() for reason in reasons]


def test_every_fault_of_the_checkout_is_reported_at_once(checkout: Path, release: Release) -> None:
    """Changed and new files, a tag that exists, a version without entries; each with what to do."""
    git(checkout, "tag", f"v{__version__}")
    for name in ("README.md", "new.txt"):
        (checkout / name).write_text("changed", encoding="utf-8")
    (checkout / "CHANGELOG.md").write_text(f"## [{__version__}]0 - 2026-01-02\n\n- Another.\n", encoding="utf-8")
    assert refused(release()) == [
        "the working tree differs from the commit: commit or remove CHANGELOG.md, README.md, new.txt",
        f"the tag v{__version__} exists: raise the version in exporter/tachograph/_version.py",
        f'CHANGELOG.md has no entries under "## [{__version__}] - YYYY-MM-DD": move those of "Unreleased" there',
    ]


def test_what_is_not_in_the_changelog_of_the_version_is_not_released(checkout: Path, release: Release) -> None:
    """Entries that are still under Unreleased, and a heading without any."""
    for text, reason in {
        ENTRY.replace("- The first.\n", ""): "no entries under",
        ENTRY.replace("[Unreleased]\n", "[Unreleased]\n\n- Another.\n"): 'entries under "Unreleased"',
    }.items():
        (checkout / "CHANGELOG.md").write_text(text, encoding="utf-8")
        git(checkout, "commit", "--quiet", "--all", "--message", "changelog")
        (said,) = refused(release())
        assert reason in said


def test_a_wheel_without_the_viewer_is_not_tagged(checkout: Path, release: Release) -> None:
    """The dry run builds without Node.js; a release does not."""
    assert refused(release("--tag")) == ["no Node.js: the wheel would lack the viewer of `tachograph dashboards`"]
    assert git(checkout, "tag") == ""


def test_the_files_of_a_release_are_the_same_bit_for_bit(checkout: Path, release: Release) -> None:
    """In two folders; the SBOM names the version and what is locked. A dry run makes no tag."""
    pytest.importorskip("cyclonedx", reason="`make test-all` installs it")
    done = release()
    assert done.returncode == 0, done.stderr
    assert "The two builds are equal.\nDry run" in done.stdout
    wheel, source, bill = (f"tachograph-{__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".cdx.json"))
    assert {path.name for path in (checkout / "dist").iterdir()} == {wheel, source, bill}
    held = json.loads((checkout / "dist" / bill).read_text(encoding="utf-8"))
    assert held["metadata"]["component"]["version"] == __version__
    lock = (ROOT / "exporter/requirements.lock").read_text(encoding="utf-8")
    assert {f"{one['name']}=={one['version']}" for one in held["components"]} == {x for x in lock.split() if "==" in x}
    assert git(checkout, "tag") == ""


def test_a_build_that_depends_on_its_folder_is_refused(checkout: Path, release: Release) -> None:
    """The message names the files that differ; none is left in dist."""
    pytest.importorskip("cyclonedx", reason="`make test-all` installs it")
    text = (checkout / "setup.py").read_text(encoding="utf-8")
    leak = '(HERE / "exporter/tachograph/report/place.txt").write_text(str(HERE))\n'
    (checkout / "setup.py").write_text(text.replace("setup(cmdclass", leak + "setup(cmdclass"), encoding="utf-8")
    git(checkout, "commit", "--quiet", "--all", "--message", "a leak")
    done = release()
    assert done.returncode == 1
    assert done.stderr == (
        f"{__version__} cannot be released: two builds of one commit differ in "
        f"tachograph-{__version__}-py3-none-any.whl, tachograph-{__version__}.tar.gz\n"
    )
    assert not (checkout / "dist").exists()
