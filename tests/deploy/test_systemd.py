"""The unit, by systemd's own tools: it loads, its hardening does not get weaker, its user can be made."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[2] / "deploy/systemd"
UNIT = SYSTEMD / "tachograph-exporter.service"
EXPOSURE = 23
"""Of 100, by `systemd-analyze security`; what is left is in the unit, with the reason."""

analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@analyze
def test_the_unit_loads(tmp_path: Path) -> None:
    """Verified with a program that exists: systemd complains of one that does not."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/tachograph/bin/tachograph", "/bin/true"))
    done = run("systemd-analyze", "verify", "--recursive-errors=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


@analyze
def test_its_hardening_does_not_get_weaker() -> None:
    done = run("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE}", UNIT)
    assert done.returncode == 0, done.stdout


def test_a_faulty_configuration_is_not_started_again(tmp_path: Path) -> None:
    """The exporter ends with a status after which the unit rests: it would be faulty two seconds later, too."""
    (tmp_path / "exporter.yml").write_text("web:\n  listen-adress: :1\n")
    done = run(sys.executable, "-m", "tachograph", "exporter", "--config", tmp_path / "exporter.yml")
    resting = re.search(r"^RestartPreventExitStatus=(.+)$", UNIT.read_text(), re.MULTILINE)
    assert resting is not None
    assert str(done.returncode) in resting[1].split(), done.stderr


@pytest.mark.parametrize("blinding", ["PrivateUsers", "PrivateDevices", "ProtectClock", "DeviceAllow", "ProtectProc"])
def test_what_would_blind_the_exporter_is_not_set(blinding: str) -> None:
    assert not re.search(rf"^{blinding}=", UNIT.read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_its_user_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", SYSTEMD / "tachograph.sysusers")
    assert done.returncode == 0, done.stderr
    user = re.search(r"^User=(\S+)", UNIT.read_text(), re.MULTILINE)
    assert user is not None
    assert f"\n{user[1]}:" in "\n" + (tmp_path / "etc/passwd").read_text()
