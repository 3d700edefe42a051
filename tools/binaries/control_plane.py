"""`python -m tools.binaries.control_plane` builds a control plane of Kubernetes for tests from Debian's source package.

Debian ships Kubernetes' client alone, and the source of all of it. That is built with the Go of the same release,
which is unpacked beside it; etcd comes as a package. Debian's Go is newer than this Kubernetes: reflect2, which reads
Go's own tables, is replaced by Debian's package of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tachograph_lab.checkout import tools
from tools.binaries import apt

SUITE = "bookworm"
SOURCE = "kubernetes"
PACKAGES = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev", "etcd-server")
VERSION = "1.20.2"
BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS = ("etcd", *BUILT)
BUILD_SECONDS = 7200.0

PACKAGE = "k8s.io/kubernetes"
REFLECT = "github.com/modern-go/reflect2"
GENERATOR = "vendor/k8s.io/kube-openapi/cmd/openapi-gen"
BOILERPLATE = "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"
NOT_SERVED = re.compile(r"code-generator|sample-|kube-openapi|gengo|/testdata/|_examples")
"""Packages whose types no API server serves."""
TAG = re.compile(rb"\+k8s:openapi-gen=")


def folder() -> Path:
    """Return where the programs are, or are to be."""
    return tools() / "kubernetes" / "bin"


def find() -> dict[str, Path] | None:
    """Return the programs by name, None if one is missing."""
    found = {name: folder() / name for name in PROGRAMS}
    return found if all(os.access(path, os.X_OK) for path in found.values()) else None


def ensure() -> dict[str, Path]:
    """Return the programs, built if they are not there; raise apt.AptError, OSError or CalledProcessError."""
    if (found := find()) is None:
        _build(folder())
        found = find()
    assert found is not None
    return found


def _build(into: Path) -> None:
    place = into.parent / "build"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    archive = apt.archive(SUITE, apt.release(), apt.sources())
    print("fetching Kubernetes' source and Go, 0.5 GB unpacked; the build takes 10 to 20 minutes", file=sys.stderr)
    try:
        apt.unpack(archive, PACKAGES, place / "root")
        source = place / "gopath/src" / PACKAGE
        apt.unpack_source(archive, SOURCE, source)
        shutil.rmtree(source / "vendor" / REFLECT)
        shutil.copytree(place / "root/usr/share/gocode/src" / REFLECT, source / "vendor" / REFLECT)
        into.mkdir(parents=True, exist_ok=True)
        _compile(source, place, into)
        shutil.copy2(place / "root/usr/bin/etcd", into / "etcd")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _compile(source: Path, place: Path, into: Path) -> None:
    """Generate what the API server says of its types, which the source leaves out, and build the programs."""
    root = place / "root/usr/lib/go-1.19"
    environment = {
        **os.environ, "GOROOT": str(root), "GOPATH": str(place / "gopath"), "GOCACHE": str(place / "cache"),
        "GO111MODULE": "off", "GOFLAGS": "", "CGO_ENABLED": "0", "HOME": str(place),
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
    }  # fmt: skip

    def run(*command: str) -> None:
        subprocess.run(command, cwd=source, env=environment, check=True, timeout=BUILD_SECONDS)

    run("go", "build", "-o", str(place / "openapi-gen"), f"./{GENERATOR}")
    packages = ",".join(f"{PACKAGE}/{name}" for name in _described(source))
    run(
        str(place / "openapi-gen"), "-i", packages, "-p", f"{PACKAGE}/pkg/generated/openapi",
        "-O", "zz_generated.openapi", "-h", BOILERPLATE, "-r", str(place / "violations"),
    )  # fmt: skip
    major, minor, _ = VERSION.split(".")
    facts = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    names = [f"{PACKAGE}/vendor/k8s.io/{name}" for name in ("component-base/version", "client-go/pkg/version")]
    flags = [f"-X {name}.{fact}={value}" for name in names for fact, value in facts.items()]
    run(
        "go", "build", "-tags", "providerless", "-ldflags", " ".join(["-s", "-w", *flags]), "-o", f"{into}/",
        *(f"./cmd/{name}" for name in BUILT),
    )  # fmt: skip


def _described(source: Path) -> Sequence[str]:
    """Return the packages whose types are to be described, by path."""
    roots = [source / "pkg", *sorted((source / "vendor/k8s.io").iterdir())]
    found = set()
    for root in roots:
        for folder_, _, names in os.walk(root, followlinks=True):
            files = (Path(folder_) / name for name in names if name.endswith(".go"))
            if any(TAG.search(path.read_bytes()) for path in files):
                found.add(str(Path(folder_).relative_to(source)))
    return sorted(name for name in found if not NOT_SERVED.search(name))


def main() -> int:
    """Print the programs' paths; return the exit status."""
    try:
        for name, path in ensure().items():
            print(f"{name:24} {path}")
    except (apt.AptError, OSError, subprocess.SubprocessError) as error:
        print(f"Kubernetes cannot be built here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
