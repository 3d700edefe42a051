"""Fetch a release's Prometheus, Alertmanager and node_exporter packages, or VictoriaMetrics, and unpack them once."""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tachograph_lab.binaries import (
    PROGRAMS,
    SYSTEM,
    VICTORIA,
    VICTORIA_PROGRAMS,
    BinariesUnavailable,
    Programs,
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
VICTORIA_PACKAGES = ("victoria-metrics",)
VICTORIA_SUITE = "sid"
"""Has 1.145; 1.112 of Debian 13 shows new series so late that pages come half a minute later."""


def ensure(suite: str = SYSTEM) -> dict[str, Path]:
    """Return the path of every program, fetching a release's packages at most once; raises BinariesUnavailable.

    `system` fetches nothing where all programs are on the PATH, and so does `victoria`, which is VictoriaMetrics.
    """
    try:
        if suite == VICTORIA:
            found = on_path(VICTORIA_PROGRAMS)
            return found if len(found) == len(VICTORIA_PROGRAMS) else _victoria()
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
    return _unpacked_from(suite, PACKAGES, folder_of(suite), PROGRAMS)


def _victoria() -> dict[str, Path]:
    return _unpacked_from(VICTORIA_SUITE, VICTORIA_PACKAGES, folder_of(VICTORIA), VICTORIA_PROGRAMS)


def _unpacked_from(suite: str, packages: Sequence[str], folder: Path, programs: Programs) -> dict[str, Path]:
    """Return the programs in `folder`, for which the packages of a release are fetched unless all are there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock")):
        if not (found := unpacked(folder, programs)):
            _fetch(suite, packages, folder, programs)
            found = unpacked(folder, programs)
    if not found:
        raise BinariesUnavailable(f"the packages of {suite} do not hold {', '.join(programs)}")
    return found


def _fetch(suite: str, packages: Sequence[str], folder: Path, programs: Programs) -> None:
    print(f"fetching {', '.join(packages)} of Debian {suite} into {folder}: 200 to 350 MB unpacked", file=sys.stderr)
    partial = folder.with_name(f".{folder.name}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        optional = OPTIONAL_PACKAGES if programs is PROGRAMS else ()
        apt.unpack(apt.archive(suite, apt.release(), apt.sources()), packages, partial, optional)
        if alertmanager := unpacked(partial, programs).get("alertmanager"):
            relocate(alertmanager)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock, which the kernel releases when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
