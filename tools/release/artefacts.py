"""The files of a release: wheel, source distribution and SBOM, each the same, bit for bit, wherever it is built."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.release import sbom
from tools.release.programs import BuildError, run
from tools.release.state import Commit

SDIST = "import setuptools.build_meta as build; build.build_sdist('dist')"


def build(root: Path, commit: Commit) -> dict[str, bytes]:
    """Return the release's files by name, built twice in different folders; raise BuildError if they differ."""
    with tempfile.TemporaryDirectory(prefix="tachograph-release-") as folder:
        python = _build_environment(root, Path(folder) / "environment")
        first, second = (_built(root, commit, Path(folder) / place, python) for place in ("a", "another/place"))
    differing = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
    if differing:
        raise BuildError(f"two builds of one commit differ in {', '.join(differing)}")
    return first


def _build_environment(root: Path, folder: Path) -> Path:
    """Return the Python of an environment with the locked build requirements alone, as the image has."""
    run([sys.executable, "-m", "venv", folder], root)
    python = folder / "bin/python"
    run([python, "-m", "pip", "install", "--require-hashes", "-r", "exporter/build.lock"], root)
    return python


def _built(root: Path, commit: Commit, folder: Path, python: Path) -> dict[str, bytes]:
    """Export the commit to a new folder and build it there."""
    # Without git's own umask: modes are 0644 and 0755, whoever builds.
    archive = subprocess.run(
        ["git", "-c", "tar.umask=0022", "archive", commit.sha], cwd=root, check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="tar")
    environment = {"SOURCE_DATE_EPOCH": str(commit.time)}
    if shutil.which("npm"):
        for command in (["ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["run", "build"]):
            run(["npm", *command], folder / "grafana/preview", environment)
    run([python, "-c", SDIST], folder, environment)
    (source,) = (folder / "dist").glob("*.tar.gz")
    _normalise(source, commit.time)
    wheel: list[str | Path] = [python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*wheel, "--wheel-dir", "dist", source], folder, environment)
    sbom.write(folder, commit.version, folder / f"dist/tachograph-{commit.version}.cdx.json")
    return {path.name: path.read_bytes() for path in (folder / "dist").iterdir()}


def _normalise(source: Path, time: int) -> None:
    """Rewrite a source distribution without what differs from build to build: times, owner and order."""
    packed = io.BytesIO()
    with (
        tarfile.open(source) as old,
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=time) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, time
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(plain, old.extractfile(member))
    source.write_bytes(packed.getvalue())
