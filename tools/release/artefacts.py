"""The files of a release, each the same, bit for bit, wherever it is built.

They are the wheel with the viewer of the dashboards, the source distribution, the Debian package, the Helm chart, what
an image is built from, the site of documents, and the SBOM.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools import helm, site
from tools.commit import Commit
from tools.debian import package
from tools.programs import BuildError, run
from tools.release import archive, sbom

SDIST = "import setuptools.build_meta as build; build.build_sdist('dist')"

NEEDED = {
    "npm": "no Node.js: the wheel would lack the viewer of `tachograph dashboards`",
    "dpkg-deb": "no dpkg-deb: there would be no Debian package; release on Debian or Ubuntu",
    "uv": "no uv: there would be no Debian package; `make release` installs it",
    "helm": "no Helm: there would be no chart; run `make binaries`, or put helm on the PATH",
    "mkdocs": "no MkDocs: there would be no site of documents; `make release` installs it",
}
"""Program -> what a release lacks without it."""


def build(root: Path, commit: Commit) -> dict[str, bytes]:
    """Return the release's files by name, built twice in different folders; raise BuildError if they differ."""
    with tempfile.TemporaryDirectory(prefix="tachograph-release-") as folder:
        builders = _Builders.install(root, Path(folder) / "builders")
        first, second = (_built(root, commit, Path(folder) / place, builders) for place in ("a", "another/place"))
    differing = [name for name in sorted({*first, *second}) if first.get(name) != second.get(name)]
    if differing:
        raise BuildError(f"two builds of one commit differ in {', '.join(differing)}")
    return first


def left_out(root: Path) -> list[str]:
    """Return what would be missing of a release that is built here, and why."""
    found = programs(root)
    return [text for program, text in NEEDED.items() if program not in found]


def programs(root: Path) -> Mapping[str, Path]:
    """Return the programs of `NEEDED` that are here."""
    own = {"uv": Path(sys.executable).parent, "mkdocs": root / ".venv-docs/bin"}
    paths = {name: shutil.which(name, path=own.get(name)) or shutil.which(name) for name in NEEDED if name != "helm"}
    with suppress(helm.HelmUnavailableError):
        paths["helm"] = str(helm.find())
    return {name: Path(path) for name, path in paths.items() if path is not None}


@dataclass(frozen=True)
class _Builders:
    """What both builds use: a Python with the locked build requirements alone, as the image has, and programs."""

    python: Path
    programs: Mapping[str, Path]
    node_modules: Path

    @classmethod
    def install(cls, root: Path, folder: Path) -> _Builders:
        """Install what is locked into a folder; raise BuildError."""
        run([sys.executable, "-m", "venv", folder / "python"], root)
        python, found, viewer = folder / "python/bin/python", programs(root), folder / "viewer"
        run([python, "-m", "pip", "install", "--require-hashes", "-r", "exporter/build.lock"], root)
        if "npm" in found:
            viewer.mkdir()
            for name in ("package.json", "package-lock.json", ".npmrc"):
                shutil.copyfile(root / "grafana/preview" / name, viewer / name)
            run([found["npm"], "ci", "--ignore-scripts", "--no-audit", "--no-fund"], viewer)
        return cls(python, found, viewer / "node_modules")

    def viewer(self, place: Path, environment: Mapping[str, str]) -> None:
        """Build the viewer; its libraries are moved there and back, for they are 45,000 files."""
        self.node_modules.rename(place / "node_modules")
        run([self.programs["npm"], "run", "build"], place, environment)
        (place / "node_modules").rename(self.node_modules)


def _built(root: Path, commit: Commit, folder: Path, builders: _Builders) -> dict[str, bytes]:
    """Export the commit to a new folder and build there what the programs that are here can build."""
    exported = _exported(root, commit)
    with tarfile.open(fileobj=io.BytesIO(exported)) as tar:
        tar.extractall(folder, filter="tar")
        files = tar.getnames()
    found, python = builders.programs, builders.python
    dist, name = folder / "dist", f"tachograph-{commit.version}"
    environment = {"SOURCE_DATE_EPOCH": str(commit.time)}
    if "npm" in found:
        builders.viewer(folder / "grafana/preview", environment)
    run([python, "-c", SDIST], folder, environment)
    (source,) = dist.glob("*.tar.gz")
    source.write_bytes(archive.normalised(source, commit.time))
    wheel: list[str | Path] = [python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*wheel, "--wheel-dir", "dist", source], folder, environment)
    sbom.write(folder, commit.version, dist / f"{name}.cdx.json")
    if {"dpkg-deb", "uv"} <= found.keys():
        package.build(folder, commit, dist, next(dist.glob("*.whl")))
    if "helm" in found:
        run([found["helm"], "package", "deploy/helm/tachograph", "--destination", "dist"], folder)
        (chart,) = dist.glob("*.tgz")
        chart.write_bytes(archive.normalised(chart, commit.time))
    if "mkdocs" in found:
        site.stage(folder / "site", folder, files)
        (dist / f"{name}-docs.tar.gz").write_bytes(_site(found["mkdocs"], folder / "site", commit))
    recipe = folder / "recipe.tar"
    recipe.write_bytes(_exported(root, commit, *image_files(folder)))
    (dist / f"{name}-image.tar.gz").write_bytes(archive.normalised(recipe, commit.time))
    return {path.name: path.read_bytes() for path in dist.iterdir()}


def _exported(root: Path, commit: Commit, *paths: str) -> bytes:
    """Return the commit, or these paths of it, as a tar; without git's own umask: modes are those of any builder."""
    command = ["git", "-c", "tar.umask=0022", "archive", commit.sha, *paths]
    return subprocess.run(command, cwd=root, check=True, capture_output=True).stdout


def image_files(checkout: Path) -> Iterator[str]:
    """Yield what `docker build` needs of a checkout: the files and folders that the Dockerfile copies, and itself."""
    recipe = "exporter/Dockerfile"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (checkout / recipe).read_text(encoding="utf-8"), re.MULTILINE)
    yield from sorted({recipe, ".dockerignore", *(path for line in copied for path in line.split())})


def _site(mkdocs: Path, folder: Path, commit: Commit) -> bytes:
    """Return the staged documents as a site, packed, every link of it checked."""
    environment = {"SOURCE_DATE_EPOCH": str(commit.time), "NO_MKDOCS_2_WARNING": "1"}
    run([mkdocs, "build", "--quiet", "--strict", "--config-file", folder / "mkdocs.yml"], folder, environment)
    return archive.folder(folder / "site", f"tachograph-{commit.version}-docs", commit.time)
