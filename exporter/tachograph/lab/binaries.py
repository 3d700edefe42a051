"""The outside programs the lab runs: on the PATH, already unpacked, or from the distribution's packages.

`python -m tachograph.lab.binaries [suite ...]` fetches them and prints where they are. Standard library only, so that
it runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tachograph.lab import apt
from tachograph.lab.checkout import CheckoutError, tools
from tachograph.lab.relocation import relocate
from tachograph.prometheus_api import OLDEST

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "prometheus": ("prometheus",),
    "promtool": ("promtool",),
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "amtool": ("amtool",),
    "node_exporter": ("prometheus-node-exporter", "node_exporter"),
}
"""Program -> the names its file has in Debian and upstream."""

PACKAGES = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")
OPTIONAL_PACKAGES = ("promtool",)
"""promtool is part of `prometheus` up to Debian 12 and a package of its own from 13 on."""

SYSTEM = "system"


class BinariesUnavailable(Exception):  # noqa: N818  (a state of the machine, not a fault)
    """The programs cannot be had here; the text says, in one line, why and what to do."""


def ensure(suite: str = SYSTEM) -> dict[str, Path]:
    """Return the path of every program in PROGRAMS, fetching a release's packages at most once.

    `system` takes them from the PATH if all are there, else from the machine's own release; a Debian code name
    (`bookworm`, `trixie`, `sid`) takes exactly that release's. Raises BinariesUnavailable.
    """
    try:
        if suite != SYSTEM:
            return _from_packages(suite)
        if len(found := _on_path()) == len(PROGRAMS):
            return _recent(found)
        return _recent(_from_packages(apt.release().codename))
    except CheckoutError as error:
        raise BinariesUnavailable(str(error)) from error
    except OSError as error:
        raise BinariesUnavailable(f"cannot write to {error.filename}: {error.strerror}") from error
    except apt.AptError as error:
        raise BinariesUnavailable(f"{error}{_advice() if suite == SYSTEM else ''}") from error


def _on_path() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for program, names in PROGRAMS.items():
        if path := next(filter(None, map(shutil.which, names)), None):
            found[program] = Path(path)
    return found


def _advice() -> str:
    missing = [program for program in PROGRAMS if program not in _on_path()]
    return f"; put {', '.join(missing)} on the PATH (https://prometheus.io/download/)"


def _from_packages(suite: str) -> dict[str, Path]:
    if not re.fullmatch(r"[a-z][a-z0-9.-]*", suite):
        raise BinariesUnavailable(f"{suite!r} is not the name of a release")
    folder = tools() / suite
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{suite}.lock")):
        if not (found := _unpacked(folder)):
            _fetch(suite, folder)
            found = _unpacked(folder)
    if not found:
        raise BinariesUnavailable(f"the packages of {suite} do not hold {', '.join(PROGRAMS)}")
    return found


def _unpacked(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for program, names in PROGRAMS.items():
        paths = (folder / "usr" / "bin" / name for name in names)
        if path := next((path for path in paths if os.access(path, os.X_OK)), None):
            found[program] = path
    return found if len(found) == len(PROGRAMS) else {}


def _fetch(suite: str, folder: Path) -> None:
    print(f"fetching {', '.join(PACKAGES)} of Debian {suite} into {folder}: 200 to 350 MB unpacked", file=sys.stderr)
    partial = folder.with_name(f".{suite}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        apt.unpack(apt.archive(suite, apt.release(), apt.sources()), PACKAGES, partial, OPTIONAL_PACKAGES)
        if found := _unpacked(partial):
            relocate(found["alertmanager"])
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock, which the kernel lets go of when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def version(program: Path) -> tuple[int, ...]:
    """Return the version that a Prometheus program reports, as numbers."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r"version (\d+(?:\.\d+)+)", done.stdout + done.stderr)
    return tuple(map(int, match[1].split("."))) if match else ()


def _recent(found: dict[str, Path]) -> dict[str, Path]:
    if (is_now := version(found["prometheus"])) < OLDEST:
        shown, oldest = (".".join(map(str, numbers)) for numbers in (is_now, OLDEST))
        raise BinariesUnavailable(f"{found['prometheus']} is {shown or 'unknown'}; put {oldest} or newer on the PATH")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the programs of each suite named on the command line and print their paths and versions."""
    for suite in (sys.argv[1:] if arguments is None else arguments) or [SYSTEM]:
        try:
            for program, path in ensure(suite).items():
                print(f"{suite:10} {program:14} {'.'.join(map(str, version(path))):9} {path}")
        except BinariesUnavailable as error:
            print(f"tachograph: {suite}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
