"""One virtual environment for the python3 of several releases: each takes the packages of its own version.

`bin/python3` is a link to /usr/bin/python3, which takes `lib/pythonX.Y/site-packages` by its own version. There is what
has parts in C, once for each version; what is the same for all is in `lib/common`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.programs import BuildError, run

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
"""Of Ubuntu 22.04, Debian 12, Ubuntu 24.04 and Debian 13."""

PLATFORMS: Mapping[str, str] = {"amd64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
"""What wheels are built for, by Debian's name of an architecture."""

LOCKS: Mapping[str, str] = {"3.10": "deploy/debian/python3.10.lock"}
"""What is installed for a version whose packages have other versions than those of the image."""

LOCK = "exporter/requirements.lock"
COMMON = "lib/common"
"""Where every version finds what is the same for all."""

SETTINGS = "home = /usr/bin\ninclude-system-site-packages = false\n"
LEFT_OUT = ("bin", ".lock", "__pycache__")
"""What is no package; of the programs only ours is kept."""

NOT_NEEDED = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
"""Files of a dist-info folder that only an installer reads, some of them with paths of this machine."""

COMMAND = """\
#!{python}
import sys

from tachograph.__main__ import main

sys.exit(main())
"""


def make(
    checkout: Path, home: Path, place: Path, architecture: str, epoch: Mapping[str, str], *, wheel: Path | None
) -> None:
    """Make in `home` the environment that is found at `place` once it is installed; raise BuildError."""
    if architecture not in PLATFORMS:
        raise BuildError(f"there are no wheels for {architecture}: only for {', '.join(PLATFORMS)}")
    trees = home / "trees"
    for version in VERSIONS:
        _install(checkout, trees / version, version, PLATFORMS[architecture])
    _ours(checkout, trees, epoch, wheel)
    _share(trees, home)
    shutil.rmtree(trees)
    (home / "pyvenv.cfg").write_text(SETTINGS)
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to("/usr/bin/python3")
    (home / "bin/tachograph").write_text(COMMAND.format(python=place / "bin/python3"))


def _install(checkout: Path, tree: Path, version: str, platform: str) -> None:
    """Install what is locked for a version of Python, with hashes; that version need not be here."""
    uv: list[str | Path] = [Path(sys.executable).parent / "uv", "pip", "install", "--quiet", "--no-config"]
    uv += ["--python", sys.executable, "--no-python-downloads"]  # or uv fetches one where none is on the PATH
    uv += ["--system-certs"]  # a site's own authority is known to the system, not to uv
    uv += ["--link-mode", "copy", "--only-binary", ":all:", "--require-hashes", "--no-deps"]
    uv += ["--python-version", version, "--python-platform", platform, "--target", tree]
    run([*uv, "--requirement", LOCKS.get(version, LOCK)], checkout)


def _ours(checkout: Path, trees: Path, epoch: Mapping[str, str], wheel: Path | None) -> None:
    """Add this project's own package to each tree, from its wheel, which is made if there is none yet."""
    pip: list[str | Path] = [sys.executable, "-m", "pip"]
    if wheel is None:
        shutil.rmtree(checkout / "build", ignore_errors=True)  # or what an earlier build left goes in, too
        run([*pip, "wheel", "--no-deps", "--wheel-dir", trees / "wheels", checkout], checkout, epoch)
        (wheel,) = (trees / "wheels").glob("*.whl")
    own = trees / "own"
    run([*pip, "install", "--no-deps", "--no-compile", "--target", own, wheel], checkout)
    for version in VERSIONS:
        shutil.copytree(own, trees / version, dirs_exist_ok=True)


def _share(trees: Path, home: Path) -> None:
    """Move what every version has in the same form to `common`, and the rest to each version's own folder."""
    for useless in (each for each in trees.rglob("*.dist-info/*") if each.name in NOT_NEEDED):
        useless.unlink()
    common = home / COMMON
    common.mkdir(parents=True)
    places = {version: home / f"lib/python{version}/site-packages" for version in VERSIONS}
    for version, place in places.items():
        place.mkdir(parents=True)
        (place / "tachograph.pth").write_text("../../common\n")
        for each in sorted((trees / version).iterdir()):
            if each.name in LEFT_OUT:
                continue
            same = [trees / other / each.name for other in VERSIONS]
            if version == VERSIONS[0] and all(_content(other) == _content(each) for other in same):
                shutil.move(each, common / each.name)
            elif not (common / each.name).exists():
                shutil.move(each, place / each.name)


def _content(path: Path) -> Mapping[str, bytes]:
    """Return the files at or below a path with their contents."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(each.relative_to(path)): each.read_bytes() for each in files}
