"""How an extra of this package is installed: from where it came, for in an index its name may be somebody else's."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote


def command(extra: str) -> str:
    """Return the pip command that adds an extra, or several (`a,b`), to this installation.

    It names the checkout, wheel or repository that pip has noted (direct_url.json), else the repository of the release.
    """
    try:
        package = distribution("tachograph")
    except PackageNotFoundError:  # modules on a path, as in a checkout that is not installed
        return f"pip install '.[{extra}]' in its checkout"
    noted = json.loads(package.read_text("direct_url.json") or "{}")
    if noted.get("dir_info", {}).get("editable"):
        return f"pip install -e '{noted['url'].removeprefix('file://')}[{extra}]'"
    if control := noted.get("vcs_info"):
        source = f"{control['vcs']}+{noted['url']}@{control['commit_id']}"
    else:
        source = noted.get("url") or f"git+{_repository(package)}@v{package.version}"
    return f"pip install 'tachograph[{extra}] @ {source}'"


def checkout() -> Path | None:
    """Return the folder on this machine from which pip has installed this package, None for a wheel or a repository."""
    try:
        noted = json.loads(distribution("tachograph").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    url = str(noted.get("url", ""))
    is_folder = "dir_info" in noted and url.startswith("file://")
    return Path(unquote(url.removeprefix("file://"))) if is_folder else None


def repository() -> str:
    """Return the address of the project's repository, its name alone for modules that are not installed."""
    try:
        return _repository(distribution("tachograph"))
    except PackageNotFoundError:
        return "tachograph"


def _repository(package: Distribution) -> str:
    named: list[str] = package.metadata.get_all("Project-URL", [])
    return dict(text.split(", ", 1) for text in named)["Source"]
