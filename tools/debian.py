"""The Debian package: `python -m tools.debian` builds it into dist/; `make deb`.

A virtual environment under /opt/tachograph with everything that requirements.lock pins, built with Debian's own Python,
for whose minor version it is; the unit of deploy/systemd, and the scripts of deploy/debian. Nothing is downloaded when
it is installed. Two builds of one commit are equal, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tachograph_lab.checkout import root
from tools.release.programs import BuildError, run
from tools.release.state import Commit, head

PYTHON = Path("/usr/bin/python3")
HOME = "opt/tachograph"
FILES = {
    "deploy/systemd/tachograph-exporter.service": "lib/systemd/system/tachograph-exporter.service",
    "deploy/systemd/tachograph.sysusers": "usr/lib/sysusers.d/tachograph.conf",
    "deploy/systemd/tachograph.tmpfiles": "usr/lib/tmpfiles.d/tachograph.conf",
    "deploy/debian/default": "etc/default/tachograph-exporter",
    "LICENSE": "usr/share/doc/tachograph/copyright",
}
CONFIGURATION = "/etc/default/tachograph-exporter\n"
SCRIPTS = ("postinst", "prerm", "postrm")


def build(checkout: Path, commit: Commit, target: Path) -> Path:
    """Build the package of a checkout into a folder and return its path; raise BuildError."""
    if not PYTHON.exists() or shutil.which("dpkg-deb") is None:
        raise BuildError("a Debian package is built on Debian, with its own python3 and dpkg-deb")
    epoch = {"SOURCE_DATE_EPOCH": str(commit.time)}
    architecture = _answer("dpkg", "--print-architecture")
    with tempfile.TemporaryDirectory(prefix="tachograph-deb-") as folder:
        tree = Path(folder) / "tree"
        _install(checkout, tree / HOME, Path(folder) / "wheels", epoch)
        for source, place in FILES.items():
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkout / source, tree / place)
        (tree / "usr/bin").mkdir(parents=True)
        (tree / "usr/bin/tachograph").symlink_to(f"/{HOME}/bin/tachograph")
        _control(checkout / "deploy/debian", tree, commit.version, architecture)
        _normalise(tree, commit.time)
        target.mkdir(parents=True, exist_ok=True)
        package = target / f"tachograph_{commit.version}_{architecture}.deb"
        run(["dpkg-deb", "--build", "--root-owner-group", "-Zxz", tree, package], checkout, epoch)
    return package


def _install(checkout: Path, home: Path, wheels: Path, epoch: Mapping[str, str]) -> None:
    """Make the environment as it is at its final place: no path of this machine stays in it."""
    run([PYTHON, "-m", "venv", "--without-pip", home], checkout)
    shutil.rmtree(checkout / "build", ignore_errors=True)  # or what an earlier build left goes in, too
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", home / "bin/python3"]
    run([*pip[:3], "wheel", "--no-deps", "--wheel-dir", wheels, checkout], checkout, epoch)
    install = [*pip, "install", "--no-compile", "--only-binary=:all:"]
    run([*install, "--require-hashes", "--requirement", "exporter/requirements.lock"], checkout)
    run([*install, "--no-deps", "--no-index", "--find-links", wheels, "tachograph"], checkout)
    for program in (home / "bin").iterdir():
        if not program.name.startswith("python") and program.name != "tachograph":
            program.unlink()
    for record in home.glob("lib/*/site-packages/*.dist-info/RECORD"):  # for pip, and with hashes of changed scripts
        record.unlink()
    command = home / "bin/tachograph"
    command.write_text(command.read_text().replace(str(home), f"/{HOME}"))
    settings = home / "pyvenv.cfg"
    lines = settings.read_text().splitlines(keepends=True)
    settings.write_text("".join(line for line in lines if not line.startswith("command")))
    # The exporter's user cannot write them, and without them it would compile its modules at each start.
    compiled: list[str | Path] = [
        "--invalidation-mode",
        "unchecked-hash",
        "-q",
        "-s",
        home,
        "-p",
        f"/{HOME}",
        home / "lib",
    ]
    run([home / "bin/python3", "-m", "compileall", *compiled], checkout)


def _control(source: Path, tree: Path, version: str, architecture: str) -> None:
    """Write the control files, scripts included."""
    major, minor = (
        int(part) for part in _answer(str(PYTHON), "-c", "import sys; print(*sys.version_info[:2])").split()
    )
    size = sum(each.lstat().st_size for each in tree.rglob("*") if not each.is_dir()) // 1024
    values = {
        "VERSION": version,
        "ARCHITECTURE": architecture,
        "SIZE": str(size),
        "PYTHON": f"{major}.{minor}",
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
            program = each.is_dir() or each.parent.name == "bin" or each.name in SCRIPTS
            each.chmod(0o755 if program else 0o644)
        os.utime(each, (time, time), follow_symlinks=False)


def _answer(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Build the package of the checked-out files; return the exit status."""
    parser = argparse.ArgumentParser(prog="make deb", description="Build the Debian package.")
    parser.add_argument("--out", type=Path, default=root() / "dist", help="folder of the package (dist)")
    try:
        package = build(root(), head(root()), parser.parse_args(arguments).out)
    except BuildError as error:
        print(f"make deb: {error}", file=sys.stderr)
        return 1
    print(f"{package} {package.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
