"""The package: an environment under /opt/tachograph, unit, manual, completions, samples and maintainer scripts.

Nothing is downloaded when it is installed. Two builds of one commit are equal, bit for bit.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tachograph.auto.command import write_copy
from tools.commit import Commit
from tools.debian import completion, environment, manual
from tools.debian.help_texts import helps
from tools.programs import BuildError, run

HOME = "opt/tachograph"
DOCS = "usr/share/doc/tachograph"
FILES = {
    "deploy/systemd/tachograph-exporter.service": "lib/systemd/system/tachograph-exporter.service",
    "deploy/systemd/tachograph.sysusers": "usr/lib/sysusers.d/tachograph.conf",
    "deploy/systemd/tachograph.tmpfiles": "usr/lib/tmpfiles.d/tachograph.conf",
    "deploy/debian/default": "etc/default/tachograph-exporter",
    "deploy/exporter.yml": f"{DOCS}/exporter.yml",
    "deploy/auto/environment.conf": "usr/lib/tachograph/auto/environment.conf",
    "deploy/auto/profile.sh": "usr/lib/tachograph/auto/profile.sh",
    "deploy/slurm/task-prolog": "usr/lib/tachograph/slurm/task-prolog",
    "deploy/slurm/task-prolog-auto": "usr/lib/tachograph/slurm/task-prolog-auto",
    "deploy/slurm/tachograph-jobs": "usr/lib/tachograph/slurm/tachograph-jobs",
    "docs/auto.md": f"{DOCS}/auto.md",
    "docs/deploy/systemd.md": f"{DOCS}/systemd.md",
    "docs/deploy/slurm.md": f"{DOCS}/slurm.md",
    "LICENSE": f"{DOCS}/copyright",
}
CHANGELOG = f"{DOCS}/changelog.gz"
CONFIGURATION = "/etc/default/tachograph-exporter\n"
SCRIPTS = ("postinst", "prerm", "postrm")
PROGRAMS = ("bin", "slurm")
"""The folders whose files can be run."""


def build(checkout: Path, commit: Commit, target: Path, wheel: Path | None = None) -> Path:
    """Build the package of a checkout, or of its wheel, into a folder and return its path; raise BuildError."""
    if shutil.which("dpkg-deb") is None:
        raise BuildError("a Debian package is built where dpkg-deb is: on Debian or Ubuntu")
    epoch = {"SOURCE_DATE_EPOCH": str(commit.time)}
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], check=True, capture_output=True, text=True
    ).stdout.strip()  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tachograph-deb-") as folder:
        tree = Path(folder) / "tree"
        (tree / HOME).mkdir(parents=True)
        environment.make(checkout, tree / HOME, Path("/") / HOME, architecture, epoch, wheel=wheel)
        write_copy(tree / HOME / "auto", tree / HOME / environment.COMMON / "tachograph")
        for source, place in FILES.items():
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout / source, tree / place)
        _write(tree, {CHANGELOG: (checkout / "CHANGELOG.md").read_bytes()})
        commands = list(helps())
        _write(tree, manual.pages(commands, commit.version, commit.time) | completion.scripts(commands))
        (tree / "usr/bin").mkdir(parents=True)
        (tree / "usr/bin/tachograph").symlink_to(f"/{HOME}/bin/tachograph")
        _control(checkout / "deploy/debian", tree, commit.version, architecture)
        _normalise(tree, commit.time)
        target.mkdir(parents=True, exist_ok=True)
        package = target / f"tachograph_{commit.version}_{architecture}.deb"
        run(["dpkg-deb", "--build", "--root-owner-group", "-Zxz", tree, package], checkout, epoch)
    return package


def _write(tree: Path, files: dict[str, bytes]) -> None:
    """Write files by path, packed where the path says so."""
    for place, content in files.items():
        (tree / place).parent.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress(content, compresslevel=9, mtime=0) if place.endswith(".gz") else content
        (tree / place).write_bytes(packed)


def _control(source: Path, tree: Path, version: str, architecture: str) -> None:
    """Write the control files, scripts included."""
    size = sum(each.lstat().st_size for each in tree.rglob("*") if not each.is_dir()) // 1024
    major, minor = map(int, environment.VERSIONS[-1].split("."))
    values = {
        "VERSION": version,
        "ARCHITECTURE": architecture,
        "SIZE": str(size),
        "PYTHON": environment.VERSIONS[0],
        "NEXT_PYTHON": f"{major}.{minor + 1}",
    }
    text = (source / "control").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    control = tree / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(text, encoding="utf-8")
    (control / "conffiles").write_text(CONFIGURATION)
    for script in SCRIPTS:
        shutil.copyfile(source / script, control / script)


def _normalise(tree: Path, time: int) -> None:
    """Give every file one time and one of two modes, whoever builds."""
    for each in (tree, *tree.rglob("*")):
        if not each.is_symlink():
            program = each.is_dir() or each.parent.name in PROGRAMS or each.name in SCRIPTS
            each.chmod(0o755 if program else 0o644)
        os.utime(each, (time, time), follow_symlinks=False)
