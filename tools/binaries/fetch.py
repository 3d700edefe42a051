"""Fetch a release's Prometheus, Alertmanager and node_exporter packages and unpack them once."""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tachograph_lab.binaries import (
    PROGRAMS,
    SYSTEM,
    BinariesUnavailable,
    advice,
    folder_of,
    on_path,
    recent,
    unpacked,
)
from tachograph_lab.checkout import CheckoutError
from tools.binaries import apt
from tools.binaries.relocation import relocate

PACKAGES = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")
OPTIONAL_PACKAGES = ("promtool",)
"""promtool is part of `prometheus` up to Debian 12 and a package of its own from 13 on."""


def ensure(suite: str = SYSTEM) -> dict[str, Path]:
    """Return the path of every program, fetching a release's packages at most once; raises BinariesUnavailable.

    `system` fetches nothing where all programs are on the PATH.
    """
    try:
        if suite != SYSTEM:
            return _from_packages(suite)
        if len(found := on_path()) == len(PROGRAMS):
            return recent(found)
        return recent(_from_packages(apt.release().codename))
    except CheckoutError as error:
        raise BinariesUnavailable(str(error)) from error
    except OSError as error:
        raise BinariesUnavailable(f"cannot write to {error.filename}: {error.strerror}") from error
    except apt.AptError as error:
        raise BinariesUnavailable(f"{error}{advice() if suite == SYSTEM else ''}") from error


def _from_packages(suite: str) -> dict[str, Path]:
    folder = folder_of(suite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{suite}.lock")):
        if not (found := unpacked(folder)):
            _fetch(suite, folder)
            found = unpacked(folder)
    if not found:
        raise BinariesUnavailable(f"the packages of {suite} do not hold {', '.join(PROGRAMS)}")
    return found


def _fetch(suite: str, folder: Path) -> None:
    print(f"fetching {', '.join(PACKAGES)} of Debian {suite} into {folder}: 200 to 350 MB unpacked", file=sys.stderr)
    partial = folder.with_name(f".{suite}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        apt.unpack(apt.archive(suite, apt.release(), apt.sources()), PACKAGES, partial, OPTIONAL_PACKAGES)
        if found := unpacked(partial):
            relocate(found["alertmanager"])
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock, which the kernel releases when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
