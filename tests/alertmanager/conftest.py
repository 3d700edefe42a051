"""Shared by the Alertmanager tests: the alerts that the rules can raise, and the real Alertmanager."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tachograph.findings import kinds
from tachograph_lab.processes import Children, answers, free_port

ROOT = Path(__file__).resolve().parents[2]
NO_CLUSTER = "--cluster.listen-address="


@pytest.fixture(scope="session")
def severities(rules: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Every alert of the rules with its severities: an alert may have a page and a ticket."""
    found: dict[str, set[str]] = {}
    for rule in rules:
        if "alert" in rule:
            found.setdefault(rule["alert"], set()).update(kinds.severities(rule["labels"]["severity"]))
    return found


@dataclass(frozen=True)
class Alertmanager:
    """A running Alertmanager: its base URL, and the actions of Prometheus and an operator."""

    url: str

    def raise_alerts(
        self, alerts: Sequence[Mapping[str, str]], annotations: Mapping[str, str] | None = None, seconds_ago: float = 0
    ) -> None:
        """Send alerts, critical by default, with the given age."""
        began = (datetime.now(timezone.utc) - timedelta(seconds=seconds_ago)).isoformat()
        self._post("/api/v2/alerts", [
            {"labels": {"severity": "critical", **labels}, "annotations": annotations or {}, "startsAt": began}
            for labels in alerts
        ])  # fmt: skip

    def end_alerts(self, alerts: Sequence[Mapping[str, str]], began: float) -> None:
        """Say that alerts have ended now, which began at a Unix time."""
        start, end = (datetime.fromtimestamp(at, timezone.utc).isoformat() for at in (began, time.time()))
        self._post("/api/v2/alerts", [
            {"labels": {"severity": "critical", **labels}, "annotations": {}, "startsAt": start, "endsAt": end}
            for labels in alerts
        ])  # fmt: skip

    def reload(self) -> None:
        """Reload its configuration."""
        self._post("/-/reload", None)

    def _post(self, path: str, content: object) -> None:
        request = urllib.request.Request(
            self.url + path, json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=60).close()


@contextmanager
def running(program: Path, folder: Path, configuration: str, *flags: str) -> Iterator[Alertmanager]:
    """Run Alertmanager with this configuration, beside the shipped templates, until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alertmanager.yml").write_text(configuration, encoding="utf-8")
    shutil.copytree(ROOT / "alertmanager/templates", folder / "templates")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [program, f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}"]
    with Children(folder) as children:
        flags = flags or (NO_CLUSTER,)
        child = children.start("alertmanager", [*command, f"--web.listen-address=127.0.0.1:{port}", *flags])
        child.wait_until(lambda: answers(f"{url}/-/ready"), 90)
        yield Alertmanager(url)


@pytest.fixture(scope="session")
def alertmanager() -> Callable[..., AbstractContextManager[Alertmanager]]:
    """Return the function that runs one, given program, directory, configuration and flags."""
    return running
