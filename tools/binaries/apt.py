"""Packages of a Debian or Ubuntu release, unpacked into a folder without touching the system or needing root.

apt is given a state of its own: an empty package database, one source and one folder for what it downloads. The mirror
is the one the machine already uses, and what arrives is verified with the archive keyring that is already installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OS_RELEASE = Path("/etc/os-release")
SOURCES = Path("/etc/apt")
KEYRINGS = Path("/usr/share/keyrings")
COMPONENTS: Mapping[str, tuple[str, ...]] = {"debian": ("main",), "ubuntu": ("main", "universe")}
FLOATING_SUITES = ("stable", "testing", "unstable", "sid")
"""Names under which a Debian source may list its release without its code name."""

TIMEOUT_SECONDS = 300.0
COMMANDS = ("apt-get", "apt-cache", "apt-config", "dpkg")


class AptError(Exception):
    """The distribution's packages cannot be had here; the text says why, in one line."""


@dataclass(frozen=True)
class Release:
    """The machine's distribution (`debian` or `ubuntu`) and its code name."""

    distribution: str
    codename: str


@dataclass(frozen=True)
class AptSource:
    """One archive of apt's sources: its URIs and how its packages are verified."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""
    trusted: str = ""


def release(os_release: Path = OS_RELEASE) -> Release:
    """Return what the machine runs; raise AptError where that is neither Debian nor Ubuntu."""
    try:
        text = os_release.read_text(encoding="utf-8")
    except OSError as error:
        raise AptError(f"{os_release} cannot be read, so this is neither Debian nor Ubuntu") from error
    fields = {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in text.splitlines())}
    family = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    if "ubuntu" in family:
        return Release("ubuntu", fields.get("UBUNTU_CODENAME") or fields.get("VERSION_CODENAME", ""))
    if "debian" in family:
        return Release("debian", fields.get("DEBIAN_CODENAME") or fields.get("VERSION_CODENAME", ""))
    raise AptError(f"{fields.get('PRETTY_NAME', 'this system')} is neither Debian nor Ubuntu")


def sources(folder: Path = SOURCES) -> list[AptSource]:
    """Return every enabled binary source of the machine, from the one-line and the deb822 format alike."""
    found: list[AptSource] = []
    parts = folder / "sources.list.d"
    for path in [folder / "sources.list", *sorted(parts.glob("*.list"))]:
        if path.is_file():
            found.extend(_one_line(path.read_text(encoding="utf-8", errors="replace")))
    for path in sorted(parts.glob("*.sources")):
        found.extend(_deb822(path.read_text(encoding="utf-8", errors="replace")))
    return found


def _one_line(text: str) -> Iterator[AptSource]:
    pattern = re.compile(r"^deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>[^#]*)")
    for line in text.splitlines():
        if match := pattern.match(line.strip()):
            options = dict(pair.partition("=")[::2] for pair in (match["options"] or "").split())
            yield AptSource(
                (match["uri"],),
                (match["suite"],),
                tuple(match["components"].split()),
                options.get("signed-by", ""),
                options.get("trusted", ""),
            )


def _deb822(text: str) -> Iterator[AptSource]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        fields: dict[str, str] = {}
        name = ""
        for line in lines:
            if line[:1].isspace():  # a key may stand in the file itself, over many lines
                fields[name] = fields.get(name, "") + "\n" + line
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() not in ("no", "false"):
            yield AptSource(
                tuple(fields.get("uris", "").split()),
                tuple(fields.get("suites", "").split()),
                tuple(fields.get("components", "").split()),
                fields.get("signed-by", ""),
                fields.get("trusted", ""),
            )


def archive(suite: str, here: Release, known: Sequence[AptSource], keyrings: Path = KEYRINGS) -> str:
    """Return the deb822 source from which `suite` can be fetched through the machine's own mirror."""
    own = suite == here.codename
    if not own and here.distribution != "debian":
        raise AptError(f"{suite} is a Debian release and this machine uses {here.distribution}'s archive")
    names = {here.codename, *(FLOATING_SUITES if here.distribution == "debian" else ())}
    keyring = _keyring(here.distribution, keyrings)
    candidates = [
        source
        for source in known
        if names & set(source.suites)
        and "main" in source.components
        and (not source.signed_by or "archive-keyring" in source.signed_by or here.distribution in source.signed_by)
    ]
    # Other vendors' sources may name the same suite; the distribution's own path ends with its name nearly everywhere.
    candidates.sort(key=lambda source: not any(u.rstrip("/").endswith(here.distribution) for u in source.uris))
    if not candidates:
        raise AptError(f"apt's sources name no {here.distribution} archive for {here.codename}")
    chosen = candidates[0]
    signed_by = chosen.signed_by if own and chosen.signed_by else str(keyring or "")
    if not signed_by and not chosen.trusted:
        raise AptError(f"{keyrings} holds no {here.distribution} archive keyring to verify {suite} with")
    fields = {
        "Types": "deb",
        "URIs": " ".join(chosen.uris),
        "Suites": suite,
        "Components": " ".join(COMPONENTS[here.distribution]),
        "Signed-By": signed_by,
        "Trusted": chosen.trusted,
    }
    return "".join(f"{key}: {value}\n" for key, value in fields.items() if value)


def _keyring(distribution: str, keyrings: Path) -> Path | None:
    names = (f"{distribution}-archive-keyring.{extension}" for extension in ("gpg", "pgp"))
    return next((path for path in map(keyrings.joinpath, names) if path.is_file()), None)


def unpack(source: str, packages: Iterable[str], destination: Path, optional: Iterable[str] = ()) -> None:
    """Download `packages`, and those of `optional` that the suite has, and unpack them into `destination`.

    `source` is a deb822 source. Nothing but `destination` (and a folder beside it, removed again) is written.
    """
    if missing := [command for command in COMMANDS if shutil.which(command) is None]:
        raise AptError(f"{', '.join(missing)} not found")
    state = destination.with_name(destination.name + ".apt")
    environment = _isolated_state(state, source)
    try:
        _run(["apt-get", "update", "--quiet"], environment, state)
        known = set(_run(["apt-cache", "pkgnames"], environment, state).split())
        wanted = [*packages, *(name for name in optional if name in known)]
        _run(["apt-get", "download", "--quiet", *wanted], environment, state / "packages")
        destination.mkdir(parents=True, exist_ok=True)
        for package in sorted((state / "packages").glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(destination)], environment, state)
    finally:
        shutil.rmtree(state, ignore_errors=True)


def unpack_source(source: str, package: str, destination: Path) -> None:
    """Download the source of a package as its authors released it, and unpack it into `destination`.

    apt verifies the checksums of its index. What a distribution changes in it (`debian/patches`) is left out.
    """
    state = destination.with_name(destination.name + ".apt")
    environment = _isolated_state(state, source.replace("Types: deb\n", "Types: deb-src\n"))
    try:
        _run(["apt-get", "update", "--quiet"], environment, state)
        _run(["apt-get", "source", "--quiet", "--download-only", package], environment, state / "packages")
        (archive,) = (state / "packages").glob("*.orig.tar.*")
        destination.mkdir(parents=True)
        _run(["tar", "-xf", str(archive), "--strip-components=1", "-C", str(destination)], environment, state)
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _isolated_state(state: Path, source: str) -> dict[str, str]:
    for folder in ("lists/partial", "cache/archives/partial", "packages", "etc/none"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "etc/archive.sources").mkdir(exist_ok=True)
    (state / "etc/archive.sources/suite.sources").write_text(source, encoding="utf-8")
    settings = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "Dir::Log": state,
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": state / "etc/none",  # no hooks of the machine run, such as Docker's clean-up after an update
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": state / "etc/archive.sources",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": state / "etc/none",
        "APT::Sandbox::User": "root",  # the folder belongs to whoever runs this, so `_apt` could not write there
        "Acquire::Languages": "none",
    }
    lines = [*_acquire_settings(), *(f'{name} "{value}";' for name, value in settings.items())]
    (state / "apt.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {**os.environ, "APT_CONFIG": str(state / "apt.conf"), "LC_ALL": "C.UTF-8"}


def _acquire_settings() -> list[str]:
    """Return the machine's settings for reaching its mirror (proxies, time-outs), without its index targets."""
    dump = _run(["apt-config", "dump"], dict(os.environ), Path("/"))
    return [
        line for line in dump.splitlines() if line.startswith("Acquire::") and not line.startswith("Acquire::Index")
    ]


def _run(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise AptError(f"`{' '.join(command[:2])}` gave no result in {TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
        raise AptError(f"`{' '.join(command[:2])}` failed: {lines[0] if lines else 'no message'}")
    return done.stdout
