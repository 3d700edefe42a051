"""Provisioning: what Grafana reads at start, and the two facts it must share with Prometheus and Compose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_data_sources_are_fixed_and_know_the_scrape_interval() -> None:
    """$__rate_interval is made of timeInterval: with another scrape interval it would cut rates short."""
    file = load("grafana/provisioning/datasources/tachograph.yml")
    assert (file["apiVersion"], file["prune"]) == (1, True)
    sources = {source["uid"]: source for source in file["datasources"]}
    assert sources.keys() == {"prometheus", "alertmanager"}
    assert all(source["access"] == "proxy" and source["editable"] is False for source in sources.values())
    options = sources["prometheus"]["jsonData"]
    assert options["timeInterval"] == load("prometheus/prometheus.yml")["global"]["scrape_interval"]
    assert options["httpMethod"] == "POST"
    assert options["alertmanagerUid"] in sources
    assert sources["alertmanager"]["jsonData"]["implementation"] == "prometheus"


def test_compose_gives_grafana_every_variable_and_folder_that_provisioning_names() -> None:
    """A missing variable would be an empty URL, a missing mount an empty folder; Grafana reports neither loudly."""
    grafana = load("docker-compose.yml")["services"]["grafana"]
    for source in load("grafana/provisioning/datasources/tachograph.yml")["datasources"]:
        assert source["url"].strip("${}") in grafana["environment"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    (provider,) = load("grafana/provisioning/dashboards/tachograph.yml")["providers"]
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].startswith(provider["options"]["path"])
    assert (provider["disableDeletion"], provider["allowUiUpdates"]) == (True, False)
