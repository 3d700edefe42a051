"""Alertmanager's side: its routes, the watchdog, and one test page."""

from __future__ import annotations

import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from tachograph.bundle import merged
from tachograph.doctor.check_result import CheckResult, fail, ok, unknown
from tachograph.findings.kinds import WATCHDOG
from tachograph.servers.alertmanager_api import Alertmanager
from tachograph.text.humanize import count, listed, plural

TEST_PAGE = "TachographTestPage"
TEST_SECONDS = 60.0
"""For which the test page lasts: longer than a page waits for its cause."""

_COMPARE = "tachograph bundle --check ALERTMANAGER.yml prints the lines to add"


def checks(alertmanager: Alertmanager, *, send_test_page: bool) -> Iterator[CheckResult]:
    """Yield the results of an Alertmanager; raise AlertmanagerError or MergeError."""
    version, text = alertmanager.ask("GET", "status", _status)
    yield ok(f"Alertmanager {version} at {alertmanager.url}")
    theirs = merged.document(text, alertmanager.url)
    here = not theirs.get("templates") or any(merged.template_files(Path("/"), theirs))
    found = merged.lacks_in(theirs, alertmanager.url, Path("/") if here else None)
    if found:
        count = sum(one.count for one in found)
        yield fail(f"it lacks {plural(count, 'part')} of our configuration, first {found[0].what}", _COMPARE)
    else:
        yield ok("it has our routes and inhibitions" + (", and our templates" if here else ""))
    for lost in merged.undelivered_in(theirs, alertmanager.url):
        yield fail(lost.what, lost.then)
    if not here:
        yield unknown("templates: those of its configuration are not on this machine", f"there, {_COMPARE}")
    alive = _alerts(alertmanager, WATCHDOG)
    if alive:
        yield ok(f"the watchdog is alive, and goes to {_receivers(alive)}")
    else:
        then = "see the line on where Prometheus sends alerts; it repeats one within a minute"
        yield fail("the watchdog, an alert that always fires, is not there", then)
    yield from _arriving(alertmanager)
    if send_test_page:
        yield _test_page(alertmanager, theirs)


def _arriving(alertmanager: Alertmanager) -> Iterator[CheckResult]:
    """Yield whether notifications arrive, by each integration that has tried to send any."""
    for integration, (tried, in_vain) in sorted(alertmanager.attempts().items()):
        if not tried:
            continue
        attempts = f"{plural(tried, 'attempt')} since it started, {count(in_vain)} failed"
        if 2 * in_vain < tried:
            yield ok(f"notifications by {integration} arrive: {attempts}")
        else:
            then = "Alertmanager's log has the reason; compare the addresses of its receivers"
            do_not = "often do not" if in_vain < tried else "do not"
            yield fail(f"notifications by {integration} {do_not} arrive: {attempts}", then)


def _status(data: Mapping[str, Any]) -> tuple[str, str]:
    return str(data["versionInfo"]["version"]), str(data["config"]["original"])


def _alerts(alertmanager: Alertmanager, name: str) -> list[Mapping[str, Any]]:
    query = urllib.parse.urlencode({"filter": f'alertname="{name}"'})
    return alertmanager.ask("GET", f"alerts?{query}", lambda data: [one for one in data if one["receivers"]])


def _receivers(alerts: list[Mapping[str, Any]]) -> str:
    return listed(sorted({receiver["name"] for alert in alerts for receiver in alert["receivers"]}))


def _test_page(alertmanager: Alertmanager, theirs: Mapping[str, Any]) -> CheckResult:
    """Send an alert that is routed as a page of a run, and ends by itself."""
    now = datetime.now(timezone.utc)
    host = socket.gethostname()
    alert = {
        "labels": {
            "alertname": TEST_PAGE, "severity": "critical", "component": "tachograph", "tier": "standard",
            "run": "tachograph-doctor", "instance": host,
        },
        "annotations": {
            "summary": "A test: nothing is wrong.",
            "description": f"`tachograph doctor` on {host} asks whether pages arrive. This one ends by itself.",
        },
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(seconds=TEST_SECONDS)).isoformat(),
    }  # fmt: skip
    alertmanager.ask("POST", "alerts", lambda _: None, [alert])
    sent = _alerts(alertmanager, TEST_PAGE)
    notifying = {one["name"] for one in theirs.get("receivers") or () if any(key.endswith("_configs") for key in one)}
    if not any(receiver["name"] in notifying for one in sent for receiver in one["receivers"]):
        return fail(f"the test page goes to {_receivers(sent) or 'nobody'}, which notifies nobody", _COMPARE)
    return unknown(
        f"a test page was sent to {_receivers(sent)}",
        f"look whether it arrives, within half a minute; it ends by itself after {TEST_SECONDS:.0f} s",
    )
