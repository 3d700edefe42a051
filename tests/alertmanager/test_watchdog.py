"""The watchdog is sent with every interval of its group: the service that waits for it is notified each minute."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8")
WATCHDOG = {"alertname": "TachographWatchdog", "severity": "none"}


@pytest.mark.e2e
def test_every_turn_sends_it(
    programs: Mapping[str, Path], alertmanager: Callable[..., Any], receiver: Any, tmp_path: Path
) -> None:
    """With a sixtieth of the time: as many notifications as Alertmanager looked whether one is due."""
    configuration = yaml.safe_load(SHIPPED.replace("http://localhost:5001", "PAGER"))
    (route,) = [one for one in configuration["route"]["routes"] if one.get("receiver") == "watchdog"]
    assert (route["group_interval"], route["repeat_interval"]) == ("1m", "30s")
    route |= {"group_interval": "1s", "repeat_interval": "500ms"}
    text = yaml.safe_dump(configuration).replace("PAGER", receiver.url)
    with alertmanager(programs["alertmanager"], tmp_path / "am", text) as running:
        running.raise_alerts([WATCHDOG])
        deadline = time.monotonic() + 60
        while len(receiver.bodies) < 4:
            assert time.monotonic() < deadline, f"{len(receiver.bodies)} notifications in a minute"
            time.sleep(0.02)
        with urlopen(f"{running.url}/metrics", timeout=60) as answer:
            page = answer.read().decode()
    looked = re.findall(r"(?m)^alertmanager_nflog_queries_total (\d+)$", page)
    sent = re.findall(r'(?m)^alertmanager_notifications_total\{integration="webhook"[^}]*\} (\d+)$', page)
    assert 4 <= sum(map(int, looked)) <= sum(map(int, sent)) + 1, "some turns sent nothing"
