"""The offered maintenance hours, on the real Alertmanager of both versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph_lab.pager import Pager

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (ROOT / "alertmanager/examples/maintenance.yml").read_text(encoding="utf-8")


@pytest.mark.e2e
def test_planned_hours_mute_those_nodes_and_no_run(
    programs: Mapping[str, Path], alertmanager: Callable[..., Any], tmp_path: Path
) -> None:
    """In the hours (here: always) alerts of that hardware are muted, even pages; others of runs and nodes are not."""
    before, _, rest = EXAMPLE.partition("      - weekdays:")
    always = before + '      - weekdays: ["sunday:saturday"]\n\nroute:' + rest.partition("\nroute:")[2]
    with Pager() as pager:
        for name in ("page", "ticket"):
            webhook = f"webhook_configs: [{{url: '{pager.url}/{name}'}}]"
            assert f"  - name: {name}\n" in always
            always = always.replace(f"  - name: {name}\n", f"  - name: {name}\n    {webhook}\n")
        with alertmanager(programs["alertmanager"], tmp_path / "am", always) as running:
            gpu = {"alertname": "GpuLost", "instance": "node-71"}
            muted = [gpu, {**gpu, "severity": "warning"}]
            running.raise_alerts([*muted, {**gpu, "run": "r"}, {**gpu, "instance": "node-81"}], seconds_ago=60)
            assert pager.wait_for(lambda page: page.labels["instance"] == "node-81", 30)
            assert pager.wait_for(lambda page: page.labels.get("run") == "r", 30)
            assert not pager.wait_for(
                lambda page: page.labels["instance"] == "node-71" and "run" not in page.labels, 0.3
            )
