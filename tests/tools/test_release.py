"""`make release`: what it refuses, and that what it builds is the same wherever it is built."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph import __version__
from tools import helm
from tools.chart import HEADER, MANIFEST

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
    """Runs the command in the clone, with git and no other program on the PATH, unless it is given."""
    (tmp_path / "bin").mkdir()
    identity = {f"GIT_{who}_{what}": "test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    packages = os.pathsep.join(str(checkout / name) for name in ("exporter", "lab", "."))
    environment = {**os.environ, **identity, "PATH": str(tmp_path / "bin"), "PYTHONPATH": packages,
                   "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip

    def run(*arguments: str, **programs: str | Path | None) -> subprocess.CompletedProcess[str]:
        for name, path in {"git": shutil.which("git"), **programs}.items():
            (tmp_path / "bin" / name.replace("_", "-")).symlink_to(path or "")
        command = [sys.executable, "-m", "tools.release", *arguments]
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=1100
        )
        shutil.rmtree(tmp_path / "bin")
        (tmp_path / "bin").mkdir()
        return done

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


LACKING = [
    "no Node.js: the wheel would lack the viewer of `tachograph dashboards`",
    "no dpkg-deb: there would be no Debian package; release on Debian or Ubuntu",
    "no Helm: there would be no chart; run `make binaries`, or put helm on the PATH",
    "no MkDocs: there would be no site of documents; `make release` installs it",
]


def test_what_lacks_a_part_is_not_tagged(checkout: Path, release: Release) -> None:
    """The dry run builds without Node.js, Helm, MkDocs and Debian's tools; a release does not."""
    pytest.importorskip("uv", reason="`make test-all` installs it")
    assert refused(release("--tag")) == LACKING
    assert git(checkout, "tag") == ""


@pytest.mark.timeout(1200)
def test_the_files_of_a_release_are_the_same_bit_for_bit(checkout: Path, release: Release) -> None:
    """In two folders; the SBOM names the version and what is locked. A dry run makes no tag, and says what it lacks."""
    pytest.importorskip("cyclonedx", reason="`make test-all` installs it")
    mkdocs = shutil.which("mkdocs", path=ROOT / ".venv-docs/bin")
    debian = {"dpkg_deb": shutil.which("dpkg-deb"), "dpkg": shutil.which("dpkg"), "tar": shutil.which("tar")}
    here = {name: path for name, path in {**debian, "helm": helm.find(), "mkdocs": mkdocs}.items() if path}
    done = release(**here)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    lacking = [text for text in LACKING if not any(name.replace("_", "-") in text.lower() for name in here)]
    assert [line for line in said if line.startswith("Left out: ")] == [f"Left out: {text}" for text in lacking]
    assert re.search(r"^The two builds are equal; they took .+\.\nDry run", done.stdout, re.MULTILINE)
    name = f"tachograph-{__version__}"
    bill, recipe = f"{name}.cdx.json", f"{name}-image.tar.gz"
    files = {f"{name}-py3-none-any.whl", f"{name}.tar.gz", f"{name}.tgz", bill, recipe}
    if mkdocs:
        files.add(f"{name}-docs.tar.gz")
    made = {path.name for path in (checkout / "dist").iterdir()}
    assert {each for each in made if not each.endswith(".deb")} == files
    assert len(made - files) == bool(debian["dpkg_deb"])
    held = json.loads((checkout / "dist" / bill).read_text(encoding="utf-8"))
    assert held["metadata"]["component"]["version"] == __version__
    lock = (ROOT / "exporter/requirements.lock").read_text(encoding="utf-8")
    assert {f"{one['name']}=={one['version']}" for one in held["components"]} == {x for x in lock.split() if "==" in x}
    assert git(checkout, "tag") == ""
    chart = [str(here["helm"]), "template", "tachograph", str(checkout / "dist" / f"{name}.tgz")]
    rendered = subprocess.run(chart, check=True, capture_output=True, text=True).stdout
    assert rendered == (ROOT / MANIFEST).read_text(encoding="utf-8").removeprefix(HEADER)
    with tarfile.open(checkout / "dist" / recipe) as tar:
        packed = set(tar.getnames())
    assert {"exporter/Dockerfile", "exporter/requirements.lock", "setup.py", ".dockerignore"} <= packed
    assert not [each for each in packed if each.startswith(("tests", "lab", "docs"))]


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
