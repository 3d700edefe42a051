"""The chart's values one by one: each reaches the objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph.findings.limits import LIMITS, applied
from tachograph.node.config import read_config
from tests.deploy.chart_rendering import CHART, MATRIX, ON, daemon_set, of_kind, rendered

OWN = MATRIX["own"]


@pytest.fixture(scope="module")
def own(program: Path) -> list[dict[str, Any]]:
    """The chart with a value of the site's wherever it takes one."""
    return rendered(program, OWN)


def the(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = of_kind(objects, kind).values()
    return found


def test_the_pod_has_what_the_site_asks_for(own: list[dict[str, Any]]) -> None:
    """In place of what the chart sets, or in addition to it."""
    spec = daemon_set(own)
    pod, (exporter,) = spec["template"]["spec"], spec["template"]["spec"]["containers"]
    assert spec["revisionHistoryLimit"] == 0
    assert the(own, "DaemonSet")["metadata"]["annotations"] == OWN["daemonSetAnnotations"]
    assert spec["template"]["metadata"]["annotations"] == OWN["podAnnotations"]
    assert spec["template"]["metadata"]["labels"].items() >= {**OWN["podLabels"], **OWN["commonLabels"]}.items()
    assert (pod["affinity"], pod["hostNetwork"], pod["serviceAccountName"]) == (OWN["affinity"], True, "gpu-monitor")
    assert pod["securityContext"].items() >= {"runAsUser": 1001, "fsGroup": 2000, "runAsNonRoot": True}.items()
    assert exporter["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYSLOG"]}
    assert exporter["securityContext"]["readOnlyRootFilesystem"] is True
    assert exporter["env"][-2:] == OWN["extraEnv"]
    assert pod["volumes"][-1:] == OWN["extraVolumes"]
    assert exporter["volumeMounts"][-1:] == OWN["extraVolumeMounts"]
    assert (exporter["livenessProbe"]["periodSeconds"], exporter["livenessProbe"]["failureThreshold"]) == (30, 6)
    assert exporter["readinessProbe"]["initialDelaySeconds"] == 2
    assert exporter["ports"] == [{"name": "metrics", "containerPort": 9445, "protocol": "TCP"}]
    assert "--web.listen-address=:9445" in exporter["args"]


def test_the_folder_belongs_to_the_user_of_the_site(own: list[dict[str, Any]]) -> None:
    """Who may be of the container's securityContext or of the pod's."""
    (init,) = daemon_set(own)["template"]["spec"]["initContainers"]
    assert init["command"][-1].endswith("chown 1001:1002 /run/tachograph")


def test_a_service_and_a_service_account_are_made(own: list[dict[str, Any]]) -> None:
    """With the site's labels and annotations; the service finds the pods."""
    service, account = the(own, "Service"), the(own, "ServiceAccount")
    assert service["metadata"]["labels"].items() >= OWN["service"]["labels"].items()
    assert service["metadata"]["annotations"] == OWN["service"]["annotations"]
    assert (service["spec"]["clusterIP"], service["spec"]["internalTrafficPolicy"]) == ("None", "Local")
    assert service["spec"]["ports"] == [{"name": "metrics", "port": 80, "targetPort": "metrics", "protocol": "TCP"}]
    assert service["spec"]["selector"].items() <= daemon_set(own)["template"]["metadata"]["labels"].items()
    assert (account["metadata"]["name"], account["metadata"]["annotations"]) == ("gpu-monitor", {"why": "pull"})


def test_the_scrape_is_the_sites(own: list[dict[str, Any]]) -> None:
    """Its interval, labels and relabelings, after those without which alerts do not join."""
    monitor = the(own, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["metadata"]["labels"].items() >= {"prometheus": "gpu", "team": "platform"}.items()
    assert monitor["metadata"]["annotations"] == {"c": "d"}
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("15s", "10s")
    assert [each.get("targetLabel") for each in endpoint["relabelings"]] == ["instance", "job", None, "cluster"]
    assert endpoint["metricRelabelings"] == OWN["podMonitor"]["metricRelabelings"]


def alerts(objects: list[dict[str, Any]]) -> list[str]:
    """Return the names of all alerts."""
    specs = [one["spec"] for one in of_kind(objects, "PrometheusRule").values()]
    return [rule["alert"] for spec in specs for group in spec["groups"] for rule in group["rules"] if "alert" in rule]


def test_an_alert_can_be_left_out(program: Path, own: list[dict[str, Any]]) -> None:
    """That one and no other, and nothing that is recorded."""
    every = alerts(rendered(program, {"prometheusRules": ON}))
    assert "GpuPowerCapped" in every
    assert alerts(own) == [name for name in every if name != "GpuPowerCapped"]
    for one in of_kind(own, "PrometheusRule").values():
        assert one["metadata"]["labels"]["role"] == "rules"
        assert one["metadata"]["annotations"] == {"e": "f"}


@pytest.mark.parametrize("place", ["limits", "prometheusRules"])
def test_the_chart_has_every_limit(program: Path, place: str) -> None:
    """Each is an argument of the exporters and changes a rule, and nothing else does; also where 0.2 had it."""
    chosen = {name: round(limit.value + 0.01, 2) for name, limit in applied({}, {}).items()}
    usual = of_kind(rendered(program, {"prometheusRules": ON}), "PrometheusRule")
    given = {"prometheusRules": ON, "limits": {**chosen, "checkpoint_age_seconds": 3600}}
    if place == "prometheusRules":
        given = {"prometheusRules": {**ON, "thresholds": chosen}}
    objects = rendered(program, given)
    (container,) = daemon_set(objects)["template"]["spec"]["containers"]
    arguments = [one for one in container["args"] if one.startswith("--limits.")]
    assert read_config(arguments, {}).site_limits == given.get("limits", chosen)
    made = of_kind(objects, "PrometheusRule")
    changed = [(old, new) for key in usual for old, new in zip(lines(usual[key]), lines(made[key]), strict=True)]
    differing = [(old.split(" + 0 * ", 1), new.split(" + 0 * ", 1)) for old, new in changed if old != new]
    assert {new for _, (new, _) in differing} == {f"label_replace({value:g}" for value in chosen.values()}
    assert all(old == new for (_, old), (_, new) in differing)


def test_the_chart_refuses_what_the_table_of_limits_refuses() -> None:
    """The schema has every limit, with its range."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["definitions"]["limits"]["properties"] == {
        limit.name: {"type": "number", "minimum": limit.least, "maximum": limit.greatest} for limit in LIMITS.values()
    }


def lines(rule: Mapping[str, Any]) -> list[str]:
    """Return the lines of all expressions of a PrometheusRule."""
    return [line for group in rule["spec"]["groups"] for each in group["rules"] for line in each["expr"].splitlines()]


def test_dashboards_go_where_grafana_looks(own: list[dict[str, Any]]) -> None:
    """By label, namespace and folder."""
    for one in of_kind(own, "ConfigMap").values():
        assert one["metadata"]["namespace"] == "grafana"
        assert one["metadata"]["labels"]["grafana_dashboard"] == "yes"
        assert one["metadata"]["annotations"] == {"grafana_folder": "Training"}


def test_no_address_is_an_example(program: Path, own: list[dict[str, Any]]) -> None:
    """Each is the site's; without an address for the watchdog, nobody is notified by it."""
    for objects in (own, rendered(program, MATRIX["site"])):
        assert "example.com" not in str(the(objects, "AlertmanagerConfig"))
        assert "#training" not in str(the(objects, "AlertmanagerConfig"))
        assert "@" not in str([one for one in receivers(objects) if "emailConfigs" not in one])
    assert [one for one in receivers(own) if len(one) == 1] == [{"name": "watchdog"}, {"name": "null"}]
    channels = {each["channel"] for one in receivers(own) for each in one.get("slackConfigs", ())}
    assert channels == {"#train"}


def receivers(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the receivers of the AlertmanagerConfig."""
    found: list[dict[str, Any]] = the(objects, "AlertmanagerConfig")["spec"]["receivers"]
    return found


def secret_keys(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return name and key of each Secret that the receivers refer to."""
    found, left = set(), list(receivers(objects))
    while left:
        one: Any = left.pop()
        if isinstance(one, dict) and set(one) == {"name", "key"}:
            found.add((one["name"], one["key"]))
        elif isinstance(one, dict | list):
            left += one.values() if isinstance(one, dict) else one
    return found


def test_the_secret_of_addresses_has_every_key(own: list[dict[str, Any]]) -> None:
    """That the AlertmanagerConfig names, by the name it has there."""
    made = of_kind(own, "Secret")["tachograph-h100-receivers"]
    assert secret_keys(own) == {("tachograph-h100-receivers", key) for key in made["stringData"]}


def test_mail_without_a_user_sends_no_password(program: Path) -> None:
    """Of a relay that asks for none."""
    mail = {"to": "a@b.example", "from": "c@d.example", "smarthost": "mx.example:25"}
    values = {**ON, "receivers": ["email"], "email": mail, "addresses": {"watchdog-url": "https://w.example"}}
    objects = rendered(program, {"alertmanagerConfig": values})
    found = [each for one in receivers(objects) for each in one.get("emailConfigs", ())]
    assert found
    assert not any({"authUsername", "authPassword"} & set(each) for each in found)
    assert secret_keys(objects) == {("tachograph-receivers", "watchdog-url")}


def test_two_releases_share_nothing(program: Path) -> None:
    """No object, and no selector that finds the other's pods: in one namespace, and with long names."""
    long = "a-very-long-name-of-a-platform-team-and-its-cluster-"
    for first, second in (("tachograph", "tachograph-b200"), (long + "1", long + "2")):
        values = {**OWN, "fullnameOverride": "", "serviceAccount": {"create": True}, "openshift": ON}
        values |= {"tls": {"secretName": "t"}, "prometheusRules": {"enabled": first == "tachograph"}}
        one, other = rendered(program, values, first), rendered(program, values, second)
        assert not identities(one) & identities(other)
        for mine, theirs in ((one, other), (other, one)):
            pods = daemon_set(theirs)["template"]["metadata"]["labels"].items()
            for selector in selectors(mine):
                assert not selector.items() <= pods
                assert selector.items() <= daemon_set(mine)["template"]["metadata"]["labels"].items()


def identities(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return kind and name of each object."""
    return {(one["kind"], one["metadata"]["name"]) for one in objects}


def selectors(objects: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the selectors of pods."""
    return [
        daemon_set(objects)["selector"]["matchLabels"],
        the(objects, "PodMonitor")["spec"]["selector"]["matchLabels"],
        the(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        the(objects, "Service")["spec"]["selector"],
    ]


def test_a_release_for_sidecars_leaves_the_daemon_set_to_its_own(program: Path) -> None:
    """Or each of its pods would be scraped twice."""
    selector = the(rendered(program, MATRIX["sidecar"]), "PodMonitor")["spec"]["selector"]
    labels = daemon_set(rendered(program, {}))["template"]["metadata"]["labels"]
    assert selector["matchLabels"].items() <= labels.items()
    (excluded,) = selector["matchExpressions"]
    assert (excluded["operator"], excluded["values"]) == ("NotIn", [labels[excluded["key"]]])


def test_openshift_admits_the_pod(program: Path) -> None:
    """By the constraints that the chart brings: they allow what the pod has, and its account may use them."""
    objects = rendered(program, {"openshift": ON, "tls": {"secretName": "t"}}, namespace="gpu")
    constraints = the(objects, "SecurityContextConstraints")
    pod = daemon_set(objects)["template"]["spec"]
    for right, field in (("allowHostPID", "hostPID"), ("allowHostNetwork", "hostNetwork"), ("allowHostIPC", "hostIPC")):
        assert constraints[right] or not pod.get(field)
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= set(constraints["volumes"])
    assert constraints["allowHostDirVolumePlugin"]
    for container in (*pod["initContainers"], *pod["containers"]):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is constraints["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is constraints["readOnlyRootFilesystem"] is True
        assert set(context["capabilities"].get("add", ())) <= set(constraints["allowedCapabilities"])
        assert context["capabilities"]["drop"] == constraints["requiredDropCapabilities"]
    assert {constraints[each]["type"] for each in ("runAsUser", "seLinuxContext")} == {"RunAsAny"}
    role, binding = the(objects, "Role"), the(objects, "RoleBinding")
    assert role["rules"][0]["resourceNames"] == [constraints["metadata"]["name"]] == ["gpu-tachograph"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "gpu"}
    assert binding["subjects"] == [account]
    assert "chcon -R -t container_file_t" in pod["initContainers"][0]["command"][-1]
