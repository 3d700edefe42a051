"""The external programs that the lab runs: on the PATH, or unpacked by `make binaries` (`tools/binaries/`)."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tachograph.servers.prometheus_api import OLDEST
from tachograph_lab.checkout import CheckoutError, tools

Programs = Mapping[str, tuple[str, ...]]
"""Program -> the names of its file in Debian and upstream."""

PROGRAMS: Programs = {
    "prometheus": ("prometheus",),
    "promtool": ("promtool",),
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "amtool": ("amtool",),
    "node_exporter": ("prometheus-node-exporter", "node_exporter"),
}
VICTORIA_PROGRAMS: Programs = {
    "store": ("victoria-metrics", "victoria-metrics-prod"),
    "vmagent": ("vmagent", "vmagent-prod"),
    "vmalert": ("vmalert", "vmalert-prod"),
}

SYSTEM = "system"
VICTORIA = "victoria"
"""The folder with VictoriaMetrics beside those of releases."""


class BinariesUnavailable(Exception):  # noqa: N818  (a state of the machine, not a fault)
    """The programs are not available; the text says in one line why, and what to do."""


def find(suite: str = SYSTEM) -> dict[str, Path]:
    """Return the path of every program in PROGRAMS; raises BinariesUnavailable.

    `system` takes them from the PATH if all are there, else those unpacked for the machine's own release; a Debian code
    name (`bookworm`, `trixie`, `sid`) takes those of that release.
    """
    try:
        if suite != SYSTEM:
            return _unpacked_of(suite)
        if len(found := on_path()) == len(PROGRAMS):
            return recent(found)
        return recent(_unpacked_of(own_release()))
    except CheckoutError as error:
        raise BinariesUnavailable(str(error)) from error


def find_victoria() -> dict[str, Path]:
    """Return the path of every program in VICTORIA_PROGRAMS, on the PATH or unpacked; raises BinariesUnavailable."""
    if len(found := on_path(VICTORIA_PROGRAMS)) == len(VICTORIA_PROGRAMS):
        return found
    try:
        found = unpacked(folder_of(VICTORIA), VICTORIA_PROGRAMS)
    except CheckoutError as error:
        raise BinariesUnavailable(str(error)) from error
    if not found:
        raise BinariesUnavailable("VictoriaMetrics is not there: run `make victoria` first")
    return found


def own_release() -> str:
    """Return the code name of this machine's release."""
    try:
        fields = platform.freedesktop_os_release()
    except OSError:
        fields = {}
    name = fields.get("UBUNTU_CODENAME") or fields.get("VERSION_CODENAME", "")
    if not name:
        raise BinariesUnavailable(f"this machine's release has no code name{advice()}")
    return name


def folder_of(suite: str) -> Path:
    """Return the folder of a release's unpacked programs; raises BinariesUnavailable for a malformed name."""
    if not re.fullmatch(r"[a-z][a-z0-9.-]*", suite):
        raise BinariesUnavailable(f"{suite!r} is not the name of a release")
    return tools() / suite


def _unpacked_of(suite: str) -> dict[str, Path]:
    if not (found := unpacked(folder_of(suite))):
        raise BinariesUnavailable(
            f"Prometheus and Alertmanager of {suite} are not in {tools()}: run `make binaries` first{advice()}"
        )
    return found


def on_path(programs: Programs = PROGRAMS) -> dict[str, Path]:
    """Return the programs that are on the PATH."""
    found: dict[str, Path] = {}
    for program, names in programs.items():
        if path := next(filter(None, map(shutil.which, names)), None):
            found[program] = Path(path)
    return found


def advice() -> str:
    """Return the end of an error message: which programs to install by hand."""
    missing = [program for program in PROGRAMS if program not in on_path()]
    return f"; or put {', '.join(missing)} on the PATH (https://prometheus.io/download/)" if missing else ""


def unpacked(folder: Path, programs: Programs = PROGRAMS) -> dict[str, Path]:
    """Return the programs unpacked in a folder; none unless all are there."""
    found: dict[str, Path] = {}
    for program, names in programs.items():
        paths = (folder / "usr" / "bin" / name for name in names)
        if path := next((path for path in paths if os.access(path, os.X_OK)), None):
            found[program] = path
    return found if len(found) == len(programs) else {}


def version(program: Path) -> tuple[int, ...]:
    """Return the version of a Prometheus program as numbers."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r"version (\d+(?:\.\d+)+)", done.stdout + done.stderr)
    return tuple(map(int, match[1].split("."))) if match else ()


def recent(found: dict[str, Path]) -> dict[str, Path]:
    """Return the programs; raises BinariesUnavailable if they are older than the rules need."""
    if (is_now := version(found["prometheus"])) < OLDEST:
        shown, oldest = (".".join(map(str, numbers)) for numbers in (is_now, OLDEST))
        raise BinariesUnavailable(f"{found['prometheus']} is {shown or 'unknown'}; put {oldest} or newer on the PATH")
    return found
