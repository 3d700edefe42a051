"""The configuration loads in both versions, routes every alert, and formats it for a person."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.conftest import NEWEST

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "alertmanager/alertmanager.yml"
NEWER = ROOT / "alertmanager/examples/more-receivers.yml"
RECEIVER = {"critical": "page", "warning": "ticket", "info": "null", "none": "watchdog"}


def amtool(programs: Mapping[str, Path], *arguments: str | Path) -> str:
    """Run amtool; fail with its output unless it succeeds."""
    done = subprocess.run([programs["amtool"], *arguments], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "path",
    [CONFIGURATION, *sorted(set(ROOT.glob("alertmanager/examples/*.yml")) - {NEWER})],
    ids=lambda path: path.stem,
)
def test_configuration_is_valid(programs: Mapping[str, Path], path: Path) -> None:
    """The shipped configuration and the offered examples load together with their templates."""
    assert "SUCCESS" in amtool(programs, "check-config", path)


@pytest.mark.parametrize("programs", [NEWEST], indirect=True)
def test_what_a_newer_alertmanager_needs_is_valid_there(programs: Mapping[str, Path]) -> None:
    """Receivers that the oldest one does not know are in a file of their own."""
    assert "SUCCESS" in amtool(programs, "check-config", NEWER)


Severities = Mapping[str, set[str]]


def test_every_alert_goes_where_its_severity_says(programs: Mapping[str, Path], severities: Severities) -> None:
    """Critical pages, a warning is a ticket, info is never sent, the watchdog has its own route; run or no run."""
    for alert, severity in ((alert, one) for alert, ones in severities.items() for one in ones):
        for run in ("run=r", "instance=node-1"):
            labels = [f"alertname={alert}", f"severity={severity}", run]
            arguments = [f"--config.file={CONFIGURATION}", f"--verify.receivers={RECEIVER[severity]}", *labels]
            amtool(programs, "config", "routes", "test", *arguments)


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        ("alertname=RankDead severity=critical run=r", "page"),
        ("alertname=RankDead severity=critical run=r tier=dev", "chat"),
        ("alertname=LossDiverging severity=warning run=r tier=dev", "chat"),
        ("alertname=LossSpike severity=info run=r tier=dev", "null"),
        ("alertname=RankDead severity=critical run=r tier=hero", "escalation,page"),
        ("alertname=LossDiverging severity=warning run=r tier=hero", "page"),
        ("alertname=GoodputLow severity=warning run=r tier=hero", "ticket"),
        ("alertname=LossSpike severity=info run=r tier=hero", "null"),
        ("alertname=LossDiverging severity=warning run=r", "ticket"),
        ("alertname=TachographWatchdog severity=none", "watchdog"),
    ],
)
def test_the_tier_of_a_run_decides_who_is_woken(programs: Mapping[str, Path], labels: str, receivers: str) -> None:
    """No page for dev; for hero also a second person, and a page for tickets that cannot wait until morning."""
    amtool(
        programs, "config", "routes", "test", f"--config.file={CONFIGURATION}", f"--verify.receivers={receivers}",
        *labels.split(),
    )  # fmt: skip


def test_the_offered_receivers_have_the_shipped_names() -> None:
    """Their sections replace the shipped ones."""
    shipped, offered = (
        {one["name"] for one in yaml.safe_load(path.read_text(encoding="utf-8"))["receivers"]}
        for path in (CONFIGURATION, ROOT / "alertmanager/examples/receivers.yml")
    )
    assert shipped == offered


def test_an_alert_of_someone_else_is_a_ticket(programs: Mapping[str, Path]) -> None:
    """An alert with an unknown severity is not lost."""
    amtool(
        programs,
        "config",
        "routes",
        "test",
        f"--config.file={CONFIGURATION}",
        "--verify.receivers=ticket",
        "severity=odd",
    )


def test_alerts_named_in_the_configuration_exist(severities: Severities) -> None:
    """A renamed alert must not silently lose its route or its inhibition."""
    named = re.findall(r'alertname=~?"([^"]+)"', CONFIGURATION.read_text(encoding="utf-8"))
    assert len(named) > 15
    for pattern in (alternative for one in named for alternative in one.split("|")):
        assert any(re.fullmatch(pattern, alert) for alert in severities), f"{pattern} matches no alert"


def test_secrets_are_files() -> None:
    """No shipped or offered file uses a key that holds a secret in plain text."""
    inline = r"^\s*-?\s*(routing_key|service_key|api_url|api_key|auth_password|password|credentials|bot_token):"
    for path in ROOT.glob("alertmanager/**/*.yml"):
        assert not re.findall(inline, path.read_text(encoding="utf-8"), re.MULTILINE), path.name
