"""The configuration loads on both generations, sends every alert where it belongs, and words it for a person."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "alertmanager/alertmanager.yml"
RECEIVER = {"critical": "page", "warning": "ticket", "info": "null", "none": "watchdog"}


def amtool(programs: Mapping[str, Path], *arguments: str | Path) -> str:
    """Run amtool; fail with its words unless it succeeds."""
    done = subprocess.run([programs["amtool"], *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "path", [CONFIGURATION, ROOT / "alertmanager/examples/receivers.yml"], ids=lambda path: path.stem
)
def test_configuration_is_valid(programs: Mapping[str, Path], path: Path) -> None:
    """What is shipped, and what is offered to copy, loads together with its template."""
    assert "1 templates" in amtool(programs, "check-config", path)


Severities = Mapping[str, set[str]]


def test_every_alert_goes_where_its_severity_says(programs: Mapping[str, Path], severities: Severities) -> None:
    """Critical pages, a warning is a ticket, info is never sent, the watchdog has a way of its own; run or no run."""
    for alert, severity in ((alert, one) for alert, ones in severities.items() for one in ones):
        for run in ("run=r", "instance=node-1"):
            labels = [f"alertname={alert}", f"severity={severity}", run]
            arguments = [f"--config.file={CONFIGURATION}", f"--verify.receivers={RECEIVER[severity]}", *labels]
            amtool(programs, "config", "routes", "test", *arguments)


def test_an_alert_of_someone_else_is_a_ticket(programs: Mapping[str, Path]) -> None:
    """A severity that we do not know is not lost."""
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


def test_inhibitions_compare_only_labels_that_are_there() -> None:
    """Labels missing on both sides count as equal: each compared label must be asked for in the target."""
    for rule in yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))["inhibit_rules"]:
        asked = {matcher.split("=~")[0] for matcher in rule["target_matchers"] if matcher.endswith('=~".+"')}
        assert rule["equal"], rule
        assert asked & set(rule["equal"]), f"{rule} would silence alerts without any of {rule['equal']}"


def matching(matchers: list[str], severities: Severities) -> set[tuple[str, str]]:
    """Return the alerts, each with a severity, that matchers on these two labels let through."""
    found = {(alert, severity) for alert, ones in severities.items() for severity in ones}
    for matcher in matchers:
        label, operator, value = re.fullmatch(r"(\w+)(=~?)\"(.*)\"", matcher).groups()  # type: ignore[union-attr]
        if label in ("alertname", "severity"):
            place = int(label == "severity")
            pattern = value if operator == "=~" else re.escape(value)
            found = {one for one in found if re.fullmatch(pattern, one[place])}
    return found


def test_a_ticket_never_silences_a_page(severities: Severities) -> None:
    """Nobody is woken by a ticket: whatever can inhibit a critical alert is critical itself."""
    rules = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))["inhibit_rules"]
    for rule in rules:
        sources, targets = (matching(rule[side], severities) for side in ("source_matchers", "target_matchers"))
        assert sources, rule
        assert targets, rule
        if any(severity == "critical" for _, severity in targets):
            assert {severity for _, severity in sources} == {"critical"}, rule


def test_no_alert_silences_its_own_kind(severities: Severities) -> None:
    """An alert that inhibits itself, or that two inhibit each other, would be heard of by nobody."""
    rules = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))["inhibit_rules"]
    pairs = {
        (source, target)
        for rule in rules
        for source in matching(rule["source_matchers"], severities)
        for target in matching(rule["target_matchers"], severities)
    }
    assert not [pair for pair in pairs if pair[::-1] in pairs]


def test_secrets_are_files() -> None:
    """No key that holds a secret itself stands in what is shipped or offered."""
    inline = r"^\s*-?\s*(routing_key|service_key|api_url|api_key|auth_password|password|credentials|bot_token):"
    for path in ROOT.glob("alertmanager/**/*.yml"):
        assert not re.findall(inline, path.read_text(encoding="utf-8"), re.MULTILINE), path.name


def notification(*alerts: Mapping[str, str], status: str = "firing") -> dict[str, Any]:
    """Return what Alertmanager hands to a template."""
    return {
        "receiver": "page", "status": status, "externalURL": "http://alerts.example", "groupLabels": {},
        "commonLabels": {"alertname": alerts[0]["alertname"], "run": "llama 7b"}, "commonAnnotations": {},
        "alerts": [
            {
                "status": status, "labels": {**labels, "severity": "critical"}, "startsAt": "2026-01-01T00:00:00Z",
                "annotations": {"description": f"Text {i}.", "runbook_url": "http://book", "dashboard_url": "http://board"},
            }
            for i, labels in enumerate(alerts)
        ],
    }  # fmt: skip


def render(programs: Mapping[str, Path], folder: Path, template: str, data: Mapping[str, Any]) -> str:
    path = folder / "data.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    glob = ROOT / "alertmanager/templates/*.tmpl"
    text = '{{ template "tachograph.' + template + '" . }}'
    arguments = [f"--template.glob={glob}", f"--template.text={text}", f"--template.data={path}"]
    return amtool(programs, "template", "render", *arguments)


def test_the_subject_names_the_culprit(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """Run, rank, node and GPU, as far as they are known; how many more there are; whether it is over."""
    rank = {"alertname": "RunHung", "run": "llama", "rank": "217", "instance": "node-27", "gpu": "1"}
    gpu = {"alertname": "GpuEccUncorrected", "instance": "node-27", "gpu": "1"}
    run = {"alertname": "MfuDropped", "run": "llama"}
    wanted = {
        "RunHung – run llama, rank 217 on node-27, GPU 1": notification(rank),
        "RunHung – run llama, rank 217 on node-27, GPU 1 and 11 more": notification(rank, *[run] * 11),
        "GpuEccUncorrected – node-27, GPU 1": notification(gpu),
        "Resolved: MfuDropped – run llama": notification(run, status="resolved"),
    }
    for subject, data in wanted.items():
        assert render(programs, tmp_path, "subject", data).strip() == subject


def test_the_body_is_capped_and_leads_on(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """Ten alerts in their own words with runbook and dashboard, then a count; a link that silences them."""
    text = render(programs, tmp_path, "body", notification(*[{"alertname": "RankDead"}] * 12))
    assert text.startswith("Text 0.\nRunbook: http://book\nDashboard: http://board\n\nText 1.\n")
    assert text.count("Runbook: ") == 10
    assert "… and 2 more." in text
    assert "http://alerts.example/#/silences/new?filter={alertname%3D%22RankDead%22%2Crun%3D%22llama%207b%22}" in text
    assert "more." not in render(programs, tmp_path, "body", notification(*[{"alertname": "RankDead"}] * 10))
