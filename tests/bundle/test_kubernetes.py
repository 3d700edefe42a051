"""The bundle as Kubernetes objects: what the operator makes of them is what is shipped."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.bundle import command, routes

ROOT = Path(__file__).resolve().parents[2]
Write = Callable[..., Path]
ANNOTATION_LIMIT = 262_144
"""Bytes that the annotation of a client-side `kubectl apply` may hold."""
EVERY_RECEIVER = [word for kind in command.RECEIVERS for word in ("--receiver", kind)]


def objects(out: Path) -> dict[str, dict[str, Any]]:
    texts = {str(path.relative_to(out)): path.read_text(encoding="utf-8") for path in out.rglob("*.yml")}
    return {name: yaml.load(text, yaml.CSafeLoader) for name, text in texts.items()}  # a tenth of safe_load's time


def accepted(*arguments: str | Path) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["operator", "configmap"])
def test_objects_are_named_once_and_labelled(write: Write, kind: str) -> None:
    """Without a namespace, which `kubectl apply --namespace` gives them."""
    found = objects(write("--format", kind, *EVERY_RECEIVER))
    names = [(one["kind"], one["metadata"]["name"]) for one in found.values()]
    assert len(set(names)) == len(names)
    for one in found.values():
        assert one["metadata"]["labels"]["app.kubernetes.io/name"] == "tachograph"
        assert "namespace" not in one["metadata"]


def test_objects_of_the_operator_can_be_applied(write: Write) -> None:
    """From the client's side: each fits into its own annotation."""
    for path, one in objects(write("--format", "operator", *EVERY_RECEIVER)).items():
        assert len(json.dumps(one).encode()) < ANNOTATION_LIMIT, path


def test_prometheus_accepts_every_rule(programs: Mapping[str, Path], write: Write, tmp_path: Path) -> None:
    """A PrometheusRule holds the groups of its subject, all of them and no other key."""
    found = {name: one for name, one in objects(write("--format", "operator")).items() if name.startswith("rules/")}
    committed = {path.name: path for path in (ROOT / "prometheus/rules").glob("*.yml")}
    assert {name.removeprefix("rules/") for name in found} == set(committed)
    for name, one in found.items():
        assert one["spec"] == yaml.load(
            committed[name.removeprefix("rules/")].read_text(encoding="utf-8"), yaml.CSafeLoader
        )
        (tmp_path / Path(name).name).write_text(yaml.safe_dump(one["spec"]), encoding="utf-8")
    accepted(programs["promtool"], "check", "rules", *tmp_path.glob("*.yml"))


def test_config_maps_hold_the_files(programs: Mapping[str, Path], write: Write, tmp_path: Path) -> None:
    """Rules and Alertmanager's configuration as in the plain format; below the limit of 1 MiB."""
    found = objects(write("--format", "configmap", "--receiver", "slack", "--receiver", "opsgenie"))
    for path in (ROOT / "prometheus/rules").glob("*.yml"):
        assert found["rules.yml"]["data"][path.name] == path.read_text(encoding="utf-8")
    (tmp_path / "templates").mkdir()
    for name, text in found["alertmanager-templates.yml"]["data"].items():
        (tmp_path / "templates" / name).write_text(text, encoding="utf-8")
    for name, text in found["alertmanager.yml"]["data"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        accepted(programs["amtool"], "check-config", tmp_path / name)
    assert all(len(json.dumps(one).encode()) < 1 << 20 for one in found.values())


@pytest.mark.parametrize("kind", ["operator", "configmap"])
def test_dashboards_have_the_label_of_the_sidecar(write: Write, kind: str) -> None:
    """One ConfigMap each, with the committed dashboard."""
    found = {name: one for name, one in objects(write("--format", kind)).items() if name.startswith("dashboards/")}
    for path in (ROOT / "grafana/dashboards").glob("*.json"):
        one = found.pop(f"dashboards/{path.stem}.yml")
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, text),) = one["data"].items()
        assert name.endswith(".json")
        assert json.loads(text) == json.loads(path.read_text(encoding="utf-8"))
    assert not found


def test_the_pod_monitor_scrapes_as_prometheus_does(write: Write) -> None:
    """`instance` is the node, the job is ours, and the limits are those of prometheus.yml."""
    spec = objects(write("--format", "operator"))["podmonitor.yml"]["spec"]
    scrape = yaml.load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)[
        "scrape_configs"
    ][0]
    (endpoint,) = spec["podMetricsEndpoints"]
    set_by = {one["targetLabel"]: one for one in endpoint["relabelings"] if "targetLabel" in one}
    assert set_by["instance"]["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
    assert set_by["job"]["replacement"] == scrape["job_name"]
    limits = ["sample_limit", "label_limit", "label_name_length_limit", "label_value_length_limit"]
    camel = ["sampleLimit", "labelLimit", "labelNameLengthLimit", "labelValueLengthLimit"]
    assert [spec[name] for name in camel] == [scrape[name] for name in limits]


SNAKE = {"groupBy": "group_by", "groupWait": "group_wait", "groupInterval": "group_interval",
         "repeatInterval": "repeat_interval"}  # fmt: skip


def back(route: Mapping[str, Any]) -> dict[str, Any]:
    """Return a route of the operator in Alertmanager's own words."""
    made = {SNAKE.get(key, key): value for key, value in route.items()}
    if "matchers" in made:
        made["matchers"] = [f'{one["name"]}{one["matchType"]}"{one["value"]}"' for one in made["matchers"]]
    if "routes" in made:
        made["routes"] = [back(child) for child in made["routes"]]
    return made


@pytest.mark.parametrize("flags", [[], EVERY_RECEIVER, ["--receiver", "pagerduty"]])
def test_the_alertmanager_config_routes_as_shipped(write: Write, flags: list[str]) -> None:
    """Every route and inhibition, limited to our alerts; every receiver that a route names, and no secret."""
    spec = objects(write("--format", "operator", *flags))["alertmanagerconfig.yml"]["spec"]
    ours = routes.shipped_configuration()
    assert back(spec["route"]) == {"matchers": [routes.COMPONENT]} | ours["route"]
    for made, rule in zip(spec["inhibitRules"], ours["inhibit_rules"], strict=True):
        for side in ("source", "target"):
            expected = [routes.COMPONENT, *rule[f"{side}_matchers"]]
            assert back({"matchers": made[f"{side}Match"]})["matchers"] == expected
        assert made["equal"] == rule["equal"]
    assert [one["name"] for one in spec["receivers"]] == [one["name"] for one in ours["receivers"]]
    assert [one["name"] for one in spec["receivers"] if len(one) == 1] == ["null"]


@pytest.mark.usefixtures("wide")
def test_the_secret_and_its_keys_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the chosen receivers, for without one of them the operator ignores the object."""
    assert command.main(["--out", str(tmp_path / "out"), "--format", "operator", "--receiver", "slack"]) == 0
    assert "create the Secret tachograph-receivers with slack-webhook-url, watchdog-url;" in capsys.readouterr().out
