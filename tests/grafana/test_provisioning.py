"""Provisioning: what Grafana reads at start, and the facts it must share with Prometheus and Compose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tachograph.servers.prometheus_api import LOOKBACK

ROOT = Path(__file__).resolve().parents[2]
DATASOURCES, DASHBOARDS = (
    f"grafana/provisioning/{kind}/tachograph.yml" for kind in ("datasources", "dashboards")
)  # fmt: skip

SOURCE_KEYS = {"name", "uid", "type", "access", "url", "isDefault", "editable", "jsonData"}
OPTION_KEYS = {
    "prometheus": {
        "httpMethod",
        "timeInterval",
        "prometheusType",
        "manageAlerts",
        "alertmanagerUid",
        "customQueryParameters",
    },
    "alertmanager": {"implementation", "handleGrafanaManagedAlerts"},
}
PROVIDER_KEYS = {
    "name", "orgId", "folder", "folderUid", "type", "disableDeletion", "allowUiUpdates", "updateIntervalSeconds",
    "options",
}  # fmt: skip
"""The keys in Grafana's documentation; Grafana silently drops any other."""


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_grafana_reads_these_files_and_knows_every_key() -> None:
    """One file of each kind, in the folder of its kind; a misspelt key would be dropped silently."""
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "grafana/provisioning").rglob("*") if path.is_file()}
    assert found == {DATASOURCES, DASHBOARDS}
    sources, providers = load(DATASOURCES), load(DASHBOARDS)
    assert sources.keys() == {"apiVersion", "prune", "datasources"}
    assert providers.keys() == {"apiVersion", "providers"}
    for source in sources["datasources"]:
        assert source.keys() <= SOURCE_KEYS, source["name"]
        assert source["jsonData"].keys() <= OPTION_KEYS[source["type"]], source["name"]
    for provider in providers["providers"]:
        assert provider.keys() <= PROVIDER_KEYS


def test_data_sources_are_fixed_and_know_the_scrape_interval() -> None:
    """$__rate_interval is made of timeInterval: with another scrape interval it would cut rates short."""
    file = load(DATASOURCES)
    assert (file["apiVersion"], file["prune"]) == (1, True)
    sources = {source["uid"]: source for source in file["datasources"]}
    assert sources.keys() == {"prometheus", "alertmanager"}
    assert len({source["name"] for source in sources.values()}) == len(sources)
    assert [source["uid"] for source in sources.values() if source.get("isDefault")] == ["prometheus"]
    assert all(source["access"] == "proxy" and source["editable"] is False for source in sources.values())
    options = sources["prometheus"]["jsonData"]
    assert options["timeInterval"] == load("prometheus/prometheus.yml")["global"]["scrape_interval"]
    assert options["httpMethod"] == "POST"
    assert options["customQueryParameters"] == f"lookback_delta={LOOKBACK}"
    assert f"LOOKBACK = '{LOOKBACK}'" in (ROOT / "grafana/preview/src/query/api.ts").read_text(encoding="utf-8")
    assert options["alertmanagerUid"] in sources
    assert sources["alertmanager"]["jsonData"]["implementation"] == "prometheus"


def test_dashboards_are_read_from_one_folder_that_nobody_edits() -> None:
    """Two providers on one folder, or a folder inside it, and Grafana finds every uid twice and writes nothing."""
    file = load(DASHBOARDS)
    assert file["apiVersion"] == 1
    (provider,) = file["providers"]
    assert (provider["type"], provider["disableDeletion"], provider["allowUiUpdates"]) == ("file", True, False)
    assert provider["folder"]
    assert provider["folderUid"]
    assert provider["options"].keys() == {"path"}
    assert all(path.suffix == ".json" for path in (ROOT / "grafana/dashboards").iterdir())


def test_compose_gives_grafana_every_variable_and_folder_that_provisioning_names() -> None:
    """A missing variable would be an empty URL, a missing mount an empty folder; Grafana reports neither loudly."""
    grafana = load("docker-compose.yml")["services"]["grafana"]
    for source in load(DATASOURCES)["datasources"]:
        assert source["url"].strip("${}") in grafana["environment"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    (provider,) = load(DASHBOARDS)["providers"]
    folder = provider["options"]["path"]
    assert mounts["./grafana/dashboards"] == folder
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(folder)
    assert (ROOT / "grafana/dashboards" / home.removeprefix(f"{folder}/")).is_file()
