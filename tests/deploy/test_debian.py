"""The Debian package: what it holds, and its life in fresh releases of Debian, one of which systemd boots."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tachograph._version import __version__
from tools.commit import head
from tools.debian import environment, package

ROOT = Path(__file__).parents[2]
DEBOOTSTRAP = ["--variant=minbase", "--include=systemd,systemd-sysv,dbus,python3,curl"]
MIRROR = "http://deb.debian.org/debian"
UNIT = "tachograph-exporter"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="a Debian package is built where dpkg-deb is"),
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
echo 'ARGS=--log.level=loud' >/etc/default/{UNIT}
systemctl restart {UNIT}
say "faulty" sh -c 'for i in $(seq 100); do systemctl is-failed {UNIT} && break; sleep 0.1; done | tail -n 1'
say "faulty restarts" systemctl show --property NRestarts --value {UNIT}
say "upgrade of a faulty one" sh -c 'dpkg -i --force-confold /root/tachograph.deb >/dev/null && echo done'
say "its fault" sh -c 'journalctl -u {UNIT} --no-pager -o cat | grep -m 1 -- --log.level'
echo 'ARGS=' >/etc/default/{UNIT}
say "corrected" sh -c 'systemctl restart {UNIT} && systemctl is-active {UNIT}'
echo 'ARGS=--web.listen-address=127.0.0.1:10025' >/etc/default/{UNIT}
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
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the working tree."""
    pytest.importorskip("uv", reason="`make test-all` installs it")
    return package.build(ROOT, head(ROOT), tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A minimal release of Debian, without /proc."""
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip("needs root, and apt-get install debootstrap")
    folder = tmp_path_factory.mktemp(request.param) / "root"
    run("debootstrap", *DEBOOTSTRAP, request.param, folder, MIRROR)
    yield folder
    shutil.rmtree(folder)


def test_it_holds_what_it_needs_and_nothing_of_the_machine_that_built_it(built: Path, tmp_path: Path) -> None:
    """Everything belongs to root, is where the unit looks for it, and no path of the build is in it."""
    run("dpkg-deb", "--extract", built, tmp_path)
    listed = run("dpkg-deb", "--contents", built)
    assert {line.split()[1] for line in listed.splitlines()} == {"root/root"}
    start = re.search(r"^ExecStart=/(\S+)", (tmp_path / f"lib/systemd/system/{UNIT}.service").read_text(), re.M)
    assert start is not None
    command = (tmp_path / start[1]).read_text()
    assert command.startswith(f"#!/{package.HOME}/bin/python3\n")
    assert str((tmp_path / package.HOME / "bin/python3").readlink()) == "/usr/bin/python3"
    traces = (b"tachograph-deb-", os.fsencode(ROOT))
    files = [each for each in tmp_path.rglob("*") if each.is_file() and not each.is_symlink()]
    assert [each for each in files if any(trace in each.read_bytes() for trace in traces)] == []
    assert not any(tmp_path.rglob("pip"))
    assert not any(tmp_path.rglob("*.pyc")), "they are made for the Python that is there, and removed with the package"
    assert run("dpkg-deb", "--field", built, "Version").strip() == __version__
    assert {each.name for each in (tmp_path / package.HOME / "auto").iterdir()} == {"sitecustomize.py", "site-packages"}
    for hook in ("task-prolog", "task-prolog-auto", "tachograph-jobs"):
        assert os.access(tmp_path / "usr/lib/tachograph/slurm" / hook, os.X_OK)
    assert (tmp_path / package.DOCS / "exporter.yml").is_file()


@pytest.mark.parametrize("version", environment.VERSIONS)
def test_it_runs_with_every_python_that_it_is_for(built: Path, tmp_path: Path, version: str) -> None:
    """All modules are imported, those in C too, from this package alone."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip(f"there is no Python {version} here")
    home = run(python, "-c", "import os, sys; print(os.path.realpath(sys.executable))").strip()
    run("dpkg-deb", "--extract", built, tmp_path)
    opt = tmp_path / package.HOME
    (opt / "bin/python3").unlink()
    (opt / "bin/python3").symlink_to(home)
    settings = (opt / "pyvenv.cfg").read_text()
    (opt / "pyvenv.cfg").write_text(settings.replace("/usr/bin", str(Path(home).parent)))
    imported = "aiohttp._http_parser, bcrypt, msgspec._core, multidict._multidict, yaml._yaml, yarl._quoting_c, textual"
    known = run(opt / "bin/python3", "-c", f"import sys, {imported}; print(*sys.version_info[:2], sep='.')")
    assert known.strip() == version
    assert run(opt / "bin/python3", opt / "bin/tachograph", "--version").strip() == f"tachograph {__version__}"
    assert "usage: tachograph exporter" in run(opt / "bin/python3", opt / "bin/tachograph", "exporter", "--help")


def test_two_builds_are_equal(built: Path, tmp_path: Path) -> None:
    """Bit for bit, in another folder."""
    assert package.build(ROOT, head(ROOT), tmp_path).read_bytes() == built.read_bytes()


def test_it_is_installed_where_an_image_is_built(built: Path, fresh: Path) -> None:
    """Without /proc, under no systemd: completely, with its user; removed, nothing stays that it made."""
    shutil.copyfile(built, fresh / "root/tachograph.deb")
    assert not any((fresh / "proc").iterdir())
    run("chroot", fresh, "dpkg", "-i", "/root/tachograph.deb")
    assert run("chroot", fresh, "dpkg-query", "-W", "-f", "${Status}", "tachograph") == "install ok installed"
    assert run("chroot", fresh, "getent", "passwd", "tachograph").startswith("tachograph:")
    assert run("chroot", fresh, "tachograph", "--version").strip() == f"tachograph {__version__}"
    compiled = list((fresh / package.HOME).rglob("tachograph/__pycache__/*.pyc"))
    assert compiled, "the exporter's user cannot write them"
    run("chroot", fresh, "dpkg", "-P", "tachograph")
    assert not (fresh / package.HOME).exists()
    assert [*fresh.glob("etc/systemd/system/*/tachograph*")] == []


def test_its_life_in_a_fresh_debian(built: Path, fresh: Path) -> None:
    """Installed, started, reloaded, killed, upgraded, removed and purged, under a systemd that boots."""
    if shutil.which("systemd-nspawn") is None:
        pytest.skip("needs apt-get install systemd-container")
    shutil.copyfile(built, fresh / "root/tachograph.deb")
    (fresh / "root/life").write_text(LIFE)
    (fresh / "root/life").chmod(0o755)
    (fresh / "etc/systemd/system/life.service").write_text(SERVICE)
    wants = fresh / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "life.service").unlink(missing_ok=True)
    (wants / "life.service").symlink_to("../life.service")
    booted = subprocess.run(
        ["systemd-nspawn", "--quiet", "-D", fresh, "--boot", "--register=no", "--keep-unit", "--private-network"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False,
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
    assert (answers["faulty"], answers["faulty restarts"]) == ("failed", "0")
    assert answers["upgrade of a faulty one"] == "done"
    assert "--log.level: 'loud': expected one of" in answers["its fault"]
    assert answers["corrected"] == "active"
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
