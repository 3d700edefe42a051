"""The Debian package: what it holds, and its life in a fresh Debian that systemd boots."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tachograph._version import __version__
from tools import debian
from tools.release.state import head

ROOT = Path(__file__).parents[2]
DEBOOTSTRAP = ["--variant=minbase", "--include=systemd,systemd-sysv,dbus,python3,curl"]
MIRROR = "http://deb.debian.org/debian"
UNIT = "tachograph-exporter"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not debian.PYTHON.exists() or shutil.which("dpkg-deb") is None,
        reason="a Debian package is built on Debian, with its own python3",
    ),
]

LIFE = rf"""#!/bin/sh
# Each line: what was asked, a tab, the last line of the answer.
say() {{ name=$1; shift; printf '%s\t%s\n' "$name" "$("$@" 2>&1 | tail -n 1)" >>/root/answers; }}
say install dpkg -i /root/tachograph.deb
say active systemctl is-active {UNIT}
say enabled systemctl is-enabled {UNIT}
say user systemctl show --property User --value {UNIT}
say command runuser -u nobody -- tachograph --version
say ready curl -s http://127.0.0.1:10024/-/ready
say socket stat -c '%U %a' /run/tachograph/rank.sock
say metrics sh -c 'curl -s http://127.0.0.1:10024/metrics | grep -c ^tachograph_exporter_info'
before=$(systemctl show --property MainPID --value {UNIT})
say reload sh -c 'systemctl reload {UNIT} && echo done'
say "same process" sh -c "test $before = \$(systemctl show --property MainPID --value {UNIT}) && echo yes"
kill -9 "$before"
say "after a kill" sh -c 'for i in $(seq 100); do curl -s 127.0.0.1:10024/-/ready && break; sleep 0.1; done'
echo 'ARGS=--web.listen-address=127.0.0.1:10025' >/etc/default/{UNIT}
say upgrade dpkg -i --force-confold /root/tachograph.deb
say "own flags" curl -s http://127.0.0.1:10025/-/ready
systemctl disable --now {UNIT}
say "upgrade of a disabled one" dpkg -i --force-confold /root/tachograph.deb
say "still disabled" systemctl is-enabled {UNIT}
say "still off" systemctl is-active {UNIT}
systemctl enable --now {UNIT}
say removal dpkg -r tachograph
say removed systemctl is-active {UNIT}
say "flags stay" cat /etc/default/{UNIT}
say "again" dpkg -i --force-confold /root/tachograph.deb
say "active again" systemctl is-active {UNIT}
say purge dpkg -P tachograph
say "left behind" sh -c 'find / -xdev -name "*tachograph*" -not -path "/proc/*" -not -path "/root/*" | grep .'
systemctl poweroff
"""

SERVICE = """[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/root/life
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the working tree."""
    return debian.build(ROOT, head(ROOT), tmp_path_factory.mktemp("package"))


def test_it_holds_what_it_needs_and_nothing_of_the_machine_that_built_it(package: Path, tmp_path: Path) -> None:
    """Everything belongs to root, is where the unit looks for it, and no path of the build is in it."""
    run("dpkg-deb", "--extract", package, tmp_path)
    listed = run("dpkg-deb", "--contents", package)
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
    start = re.search(r"^ExecStart=/(\S+)", (tmp_path / f"lib/systemd/system/{UNIT}.service").read_text(), re.M)
    assert start is not None
    command = (tmp_path / start[1]).read_text()
    assert command.startswith(f"#!/{debian.HOME}/bin/python3\n")
    assert (tmp_path / debian.HOME / "bin/python3").readlink() == debian.PYTHON
    traces = (b"tachograph-deb-", os.fsencode(ROOT))
    files = [each for each in tmp_path.rglob("*") if each.is_file() and not each.is_symlink()]
    assert [each for each in files if any(trace in each.read_bytes() for trace in traces)] == []
    assert any(each.suffix == ".pyc" for each in files), "the exporter's user cannot write them"
    assert not any(tmp_path.rglob("pip"))
    assert run("dpkg-deb", "--field", package, "Version").strip() == __version__


def test_two_builds_are_equal(package: Path, tmp_path: Path) -> None:
    """Bit for bit, in another folder."""
    assert debian.build(ROOT, head(ROOT), tmp_path).read_bytes() == package.read_bytes()


def test_its_life_in_a_fresh_debian(package: Path, tmp_path: Path) -> None:
    """Installed, started, reloaded, killed, upgraded, removed and purged, under a systemd that boots."""
    missing = [program for program in ("debootstrap", "systemd-nspawn") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip("needs root, and apt-get install debootstrap systemd-container")
    fresh = tmp_path / "debian"
    run("debootstrap", *DEBOOTSTRAP, "bookworm", fresh, MIRROR)
    shutil.copyfile(package, fresh / "root/tachograph.deb")
    (fresh / "root/life").write_text(LIFE)
    (fresh / "root/life").chmod(0o755)
    (fresh / "etc/systemd/system/life.service").write_text(SERVICE)
    wants = fresh / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "life.service").symlink_to("../life.service")
    booted = subprocess.run(
        ["systemd-nspawn", "--quiet", "-D", fresh, "--boot", "--register=no", "--keep-unit", "--private-network"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    if not (fresh / "root/answers").exists():
        pytest.skip(f"systemd-nspawn cannot boot here: {(booted.stderr or booted.stdout)[-300:]}")
    answers = said((fresh / "root/answers").read_text())
    assert answers["active"] == "active"
    assert answers["enabled"] == "enabled"
    assert answers["user"] == "tachograph"
    assert answers["command"] == f"tachograph {__version__}"
    assert answers["ready"].startswith("ready: ranks can connect")
    assert answers["socket"] == "tachograph 666"
    assert answers["metrics"] == "1"
    assert (answers["reload"], answers["same process"]) == ("done", "yes")
    assert answers["after a kill"].startswith("ready: ranks can connect")
    assert answers["own flags"].startswith("ready: ranks can connect")
    assert (answers["still disabled"], answers["still off"]) == ("disabled", "inactive")
    assert answers["removed"] == "inactive"
    assert answers["flags stay"] == "ARGS=--web.listen-address=127.0.0.1:10025"
    assert answers["active again"] == "active"
    assert answers["left behind"] == "", "nothing but the user, whose number must not become another's"


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def said(answers: str) -> Mapping[str, str]:
    return dict(line.split("\t", 1) for line in answers.splitlines())
