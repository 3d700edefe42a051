"""Where the outside programs come from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tachograph_lab import binaries
from tachograph_lab.checkout import TOOLS_ENVIRONMENT
from tools.binaries import apt
from tools.binaries.fetch import ensure

ROOT = Path(__file__).parents[2]

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://vendor.example/debian/12/prod
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----
"""

ONE_LINE = """\
# deb http://comment.example/ubuntu noble main
deb-src http://source.example/ubuntu noble main
deb [arch=amd64 signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example/apt noble main
deb http://mirror.example/ubuntu noble main restricted # main archive
deb http://mirror.example/ubuntu noble-security main
"""


def program(path: Path, says: str = "prometheus, version 2.45.3 (branch: x)") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def unpacked(folder: Path, programs: binaries.Programs = binaries.PROGRAMS) -> None:
    for names in programs.values():
        program(folder / "usr/bin" / names[0])


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(TOOLS_ENVIRONMENT, str(tmp_path / "tools"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(apt, "OS_RELEASE", tmp_path / "os-release")
    return tmp_path / "tools"


@pytest.fixture
def no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("downloaded although everything is there")

    monkeypatch.setattr(apt, "unpack", refuse)


@pytest.mark.usefixtures("no_download")
def test_unpacked_programs_are_used_again(tools: Path) -> None:
    """A program that is already in the suite's folder is not fetched again."""
    unpacked(tools / "bookworm")
    found = ensure("bookworm")
    assert set(found) == set(binaries.PROGRAMS)
    assert found["alertmanager"] == tools / "bookworm/usr/bin/prometheus-alertmanager"


def test_half_a_folder_is_fetched_anew(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that lacks a program counts for nothing: it is replaced, whole, by one rename."""
    program(tools / "sid/usr/bin/prometheus")
    (tools / "sid/rubbish").touch()
    monkeypatch.setattr(apt, "release", lambda: apt.Release("debian", "bookworm"))
    monkeypatch.setattr(
        apt, "sources", lambda: [apt.AptSource(("http://m/debian",), ("bookworm",), ("main",), "", "yes")]
    )
    monkeypatch.setattr(apt, "unpack", lambda source, packages, folder, optional: unpacked(folder))
    assert len(ensure("sid")) == len(binaries.PROGRAMS)
    assert sorted(path.name for path in tools.iterdir()) == [".sid.lock", "sid"]
    assert not (tools / "sid/rubbish").exists()


def test_failed_download_leaves_nothing(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that fails halfway leaves no folder that looks complete, and says what failed in one line."""

    def fail(source: str, packages: object, folder: Path, optional: object) -> None:
        program(folder / "usr/bin/prometheus")
        raise apt.AptError("`apt-get update` failed: no route")

    monkeypatch.setattr(apt, "release", lambda: apt.Release("debian", "bookworm"))
    monkeypatch.setattr(apt, "archive", lambda *_: "")
    monkeypatch.setattr(apt, "unpack", fail)
    with pytest.raises(binaries.BinariesUnavailable, match=r"no route") as caught:
        ensure("bookworm")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tools.iterdir()] == [".bookworm.lock"]


@pytest.mark.usefixtures("no_download")
def test_the_path_comes_first(tools: Path) -> None:
    """Programs on the PATH under upstream's names are taken as they are; nothing is written."""
    for names in binaries.PROGRAMS.values():
        program(tools.parent / "bin" / names[-1])
    assert ensure()["node_exporter"] == tools.parent / "bin/node_exporter"
    assert not tools.exists()


@pytest.mark.usefixtures("tools")
def test_another_distribution_is_told_what_to_do(tmp_path: Path) -> None:
    """Where there is no apt, one line says what to put on the PATH, and only what is missing."""
    (tmp_path / "os-release").write_text('ID=fedora\nPRETTY_NAME="Fedora Linux 42"\n')
    program(tmp_path / "bin/promtool")
    os_release = apt.release
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apt, "release", lambda: os_release(tmp_path / "os-release"))
        with pytest.raises(binaries.BinariesUnavailable) as caught:
            ensure()
    assert str(caught.value) == (
        "Fedora Linux 42 is neither Debian nor Ubuntu; or put prometheus, alertmanager, amtool, node_exporter on the "
        "PATH (https://prometheus.io/download/)"
    )


def test_a_prometheus_too_old_is_refused(tools: Path) -> None:
    """The rules need Prometheus 2.42; an older one is named with its version."""
    for names in binaries.PROGRAMS.values():
        program(tools.parent / "bin" / names[0], "prometheus, version 2.31.2 (branch: x)")
    with pytest.raises(binaries.BinariesUnavailable, match=r"is 2\.31\.2; put 2\.42 or newer"):
        ensure()


def test_the_lab_fetches_nothing(tools: Path) -> None:
    """A missing program is reported in one line with what to do; an unpacked one is found."""
    with pytest.raises(binaries.BinariesUnavailable, match="run `make binaries` first; or put prometheus, "):
        binaries.find("bookworm")
    assert not tools.exists()
    unpacked(tools / "bookworm")
    assert binaries.find("bookworm")["amtool"] == tools / "bookworm/usr/bin/amtool"


def test_victoria_metrics_has_a_folder_of_its_own(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is fetched once, from the release that has a recent one; without it, one line says what to do."""
    fetched = []

    def fetch(source: str, packages: object, folder: Path, optional: object) -> None:
        fetched.append((source, packages, optional))
        unpacked(folder, binaries.VICTORIA_PROGRAMS)

    monkeypatch.setattr(apt, "release", lambda: apt.Release("debian", "bookworm"))
    monkeypatch.setattr(apt, "archive", lambda suite, *_: suite)
    monkeypatch.setattr(apt, "unpack", fetch)
    with pytest.raises(binaries.BinariesUnavailable, match="run `make victoria` first"):
        binaries.find_victoria()
    assert ensure("victoria") == ensure("victoria") == binaries.find_victoria()
    assert fetched == [("sid", ("victoria-metrics",), ())]
    assert binaries.find_victoria()["store"] == tools / "victoria/usr/bin/victoria-metrics"
    for names in binaries.VICTORIA_PROGRAMS.values():
        program(tools.parent / "bin" / names[-1])
    assert ensure("victoria") == binaries.find_victoria()
    assert binaries.find_victoria()["store"] == tools.parent / "bin/victoria-metrics-prod"


@pytest.mark.usefixtures("tools")
def test_a_suite_cannot_leave_its_folder() -> None:
    """A suite's name is a word, never a path."""
    with pytest.raises(binaries.BinariesUnavailable, match="not the name of a release"):
        ensure("../bookworm")


def test_sources_in_both_formats(tmp_path: Path) -> None:
    """Enabled binary sources are found in sources.list, *.list and *.sources, with keys that span lines."""
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (parts / "debian.sources").write_text(DEB822)
    (parts / "old.sources.disabled").write_text(DEB822)
    vendor, archive, security, debian, other = apt.sources(tmp_path)
    assert (vendor.uris, vendor.signed_by) == (("https://vendor.example/apt",), "/usr/share/keyrings/vendor.gpg")
    assert (archive.uris, archive.components) == (("http://mirror.example/ubuntu",), ("main", "restricted"))
    assert security.suites == ("noble-security",)
    assert debian.uris == ("http://mirror.example/debian", "http://second.example/debian")
    assert debian.suites == ("bookworm", "bookworm-updates")
    assert "PGP PUBLIC KEY" in other.signed_by


def test_the_archive_is_the_distributions_own(tmp_path: Path) -> None:
    """Of sources that name the same suite, the distribution's mirror is taken, with a keyring for the suite."""
    keyring = tmp_path / "debian-archive-keyring.gpg"
    keyring.touch()
    known = [
        apt.AptSource(("http://vendor.example/debian",), ("bookworm",), ("main",), "/etc/apt/keyrings/vendor.gpg"),
        apt.AptSource(("http://other.example/apt",), ("bookworm",), ("main",)),
        apt.AptSource(
            ("http://mirror.example/debian",), ("bookworm",), ("main",), "/k/debian-archive-bookworm-stable.gpg"
        ),
    ]
    here = apt.Release("debian", "bookworm")
    assert apt.archive("sid", here, known, tmp_path) == (
        f"Types: deb\nURIs: http://mirror.example/debian\nSuites: sid\nComponents: main\nSigned-By: {keyring}\n"
    )
    assert "Signed-By: /k/debian-archive-bookworm-stable.gpg" in apt.archive("bookworm", here, known, tmp_path)


def test_ubuntu_has_its_own_release_only(tmp_path: Path) -> None:
    """On Ubuntu the programs are in universe, and Debian's suites are refused with a reason."""
    (tmp_path / "ubuntu-archive-keyring.gpg").touch()
    known = [apt.AptSource(("http://mirror.example/ubuntu",), ("noble",), ("main", "universe"))]
    here = apt.Release("ubuntu", "noble")
    assert "Components: main universe\n" in apt.archive("noble", here, known, tmp_path)
    with pytest.raises(apt.AptError, match="sid is a Debian release"):
        apt.archive("sid", here, known, tmp_path)


def test_nothing_unverified(tmp_path: Path) -> None:
    """Without a keyring nothing is fetched, unless the machine's owner trusts the source without one."""
    here = apt.Release("debian", "bookworm")
    with pytest.raises(apt.AptError, match="no debian archive keyring"):
        apt.archive("sid", here, [apt.AptSource(("http://m/debian",), ("bookworm",), ("main",))], tmp_path)
    trusted = [apt.AptSource(("http://m/debian",), ("bookworm",), ("main",), "", "yes")]
    assert "Trusted: yes" in apt.archive("sid", here, trusted, tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=debian\nVERSION_CODENAME=trixie\n", apt.Release("debian", "trixie")),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n", apt.Release("ubuntu", "noble")),
        (
            'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_CODENAME=x\nUBUNTU_CODENAME=noble\n',
            apt.Release("ubuntu", "noble"),
        ),
        ("ID=raspbian\nID_LIKE=debian\nVERSION_CODENAME=bookworm\n", apt.Release("debian", "bookworm")),
    ],
)
def test_release(tmp_path: Path, text: str, expected: apt.Release) -> None:
    """A derivative counts as the distribution whose packages it can use."""
    (tmp_path / "os-release").write_text(text)
    assert apt.release(tmp_path / "os-release") == expected


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    """Two processes that want the same suite at the same time: one fetches, the other waits and uses the result."""
    script = (
        "import pathlib, sys, time\n"
        "from tachograph_lab import binaries\n"
        "from tools.binaries import apt, fetch\n"
        "def unpack(source, packages, folder, optional):\n"
        "    open(sys.argv[1], 'a').write('fetched\\n'); time.sleep(0.3)\n"
        "    for names in binaries.PROGRAMS.values():\n"
        "        path = folder / 'usr/bin' / names[0]\n"
        "        path.parent.mkdir(parents=True, exist_ok=True); path.touch(); path.chmod(0o755)\n"
        "apt.unpack, apt.archive, apt.release = unpack, lambda *_: '', lambda: apt.Release('debian', 'x')\n"
        "print(len(fetch.ensure('bookworm')))\n"
    )
    environment = {**os.environ, TOOLS_ENVIRONMENT: str(tmp_path / "tools"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=90)[0].strip() for process in both] == ["5", "5"]
    assert (tmp_path / "log").read_text() == "fetched\n"
