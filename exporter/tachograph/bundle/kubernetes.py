"""A bundle as Kubernetes objects: the Prometheus operator's, or ConfigMaps for programs without an operator."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

from tachograph.bundle import routes
from tachograph.bundle.site import Site, runbooks, templates

LABELS = {"app.kubernetes.io/name": "tachograph"}
DASHBOARD_LABELS = {**LABELS, "grafana_dashboard": "1"}
"""The label that Grafana's sidecar in kube-prometheus-stack looks for."""

SECRET = "tachograph-receivers"

TEXT = """\
{{ range .Alerts.Firing }}{{ .Annotations.description | reReplaceAll "[<>&]" "" }}
{{ .Annotations.runbook_url }}
{{ end }}"""
TITLE = '{{ .CommonLabels.alertname }} {{ .CommonLabels.run | reReplaceAll "[<>&]" "" }}'
"""Without our templates, which an AlertmanagerConfig cannot bring; a run's name cannot address a channel."""


def operator(site: Site) -> dict[str, str]:
    """Return the objects of the Prometheus operator, with the dashboards as ConfigMaps, by path."""
    return (
        {f"rules/{name}": _prometheus_rule(name, text) for name, text in site.rules().items()}
        | {
            "podmonitor.yml": routes.dumped(
                _object("monitoring.coreos.com/v1", "PodMonitor", "exporter", {"spec": pod_monitor()})
            ),
            "alertmanagerconfig.yml": _alertmanager_config(site.receivers),
        }
        | {"alertmanager-templates.yml": routes.dumped(_config_map("alertmanager-templates", templates()))}
        | _exporter(site)
        | _dashboards(site)
        | runbooks()
    )


def config_maps(site: Site) -> dict[str, str]:
    """Return ConfigMaps of rules, of Alertmanager's configuration and templates, and of the dashboards, by path."""
    return (
        {
            "rules.yml": routes.dumped(_config_map("rules", site.rules())),
            "alertmanager.yml": routes.dumped(_config_map("alertmanager", site.alertmanager())),
            "alertmanager-templates.yml": routes.dumped(_config_map("alertmanager-templates", templates())),
        }
        | _exporter(site)
        | _dashboards(site)
        | runbooks()
    )


def pod_monitor() -> dict[str, Any]:
    """Return the scrape of the exporter's pods, as prometheus/prometheus.yml has it for hosts: a PodMonitor's spec."""
    endpoint = {
        "port": "metrics",
        "interval": "5s",
        "scrapeTimeout": "4s",
        # pod and namespace on our series are those of the training job.
        "honorLabels": True,
        "relabelings": [
            {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"},
            {"targetLabel": "job", "replacement": "tachograph"},
            # Those of the exporter's own pod change when it is replaced, and every series with them.
            {"action": "labeldrop", "regex": "pod|container|namespace|endpoint"},
        ],
    }
    return {
        "namespaceSelector": {"any": True},
        "selector": {"matchLabels": LABELS},
        "podMetricsEndpoints": [endpoint],
        "sampleLimit": 10000,
        "labelLimit": 16,
        "labelNameLengthLimit": 64,
        "labelValueLengthLimit": 256,
    }


def alertmanager(chosen: Sequence[str]) -> dict[str, Any]:
    """Return routes, inhibitions and receivers of the chosen kinds, as an AlertmanagerConfig has them."""
    ours = routes.shipped_configuration()
    return {
        "route": _route({"matchers": [routes.COMPONENT]} | ours["route"]),
        "inhibitRules": [
            {
                "sourceMatch": _matchers(rule["source_matchers"]),
                "targetMatch": _matchers(rule["target_matchers"]),
                "equal": rule["equal"],
            }
            for rule in map(routes.of_ours, ours["inhibit_rules"])
        ],
        "receivers": [_receiver(one["name"], chosen or ("webhook",)) for one in ours["receivers"]],
    }


def _alertmanager_config(chosen: Sequence[str]) -> str:
    made = _object("monitoring.coreos.com/v1alpha1", "AlertmanagerConfig", "alerts", {"spec": alertmanager(chosen)})
    return _AS_CONFIG + routes.dumped(made)


_AS_CONFIG = f"""\
# The operator adds namespace="<its namespace>" to the route and inhibitions, which our alerts do not have: set
# `alertmanagerConfigMatcherStrategy: {{type: None}}` in the Alertmanager's spec. Templates cannot be part of this
# object, so its texts are shorter. Until the Secret {SECRET} has every key that is named here, the operator
# ignores the whole object. docs/deploy/alertmanager.md has more.
"""

_CAMEL = {
    "group_by": "groupBy",
    "group_wait": "groupWait",
    "group_interval": "groupInterval",
    "repeat_interval": "repeatInterval",
}


def _route(route: Mapping[str, Any]) -> dict[str, Any]:
    made = {_CAMEL.get(key, key): value for key, value in route.items()}
    if "matchers" in made:
        made["matchers"] = _matchers(made["matchers"])
    if "routes" in made:
        made["routes"] = [_route(child) for child in made["routes"]]
    return made


def _matchers(texts: Sequence[str]) -> list[dict[str, str]]:
    return [
        {"name": name, "matchType": operator, "value": value}
        for name, operator, value in (routes.parsed(text) for text in texts)
    ]


def secret_keys(chosen: Sequence[str]) -> list[str]:
    """Return the keys that the Secret needs for these receivers."""
    return sorted(set(re.findall(rf"name: {SECRET}\n +key: (\S+)", _alertmanager_config(chosen))))


def _receiver(name: str, chosen: Sequence[str]) -> dict[str, Any]:
    if name == "null":
        return {"name": name}
    if name == "watchdog":
        return {"name": name, "webhookConfigs": [{"urlSecret": _secret("watchdog-url"), "sendResolved": False}]}
    made: dict[str, Any] = {"name": name}
    for kind in routes.kinds_of(name, chosen):
        made |= _integration(name, kind)
    return made


def _integration(name: str, kind: str) -> dict[str, Any]:
    if kind == "webhook":
        return {"webhookConfigs": [{"urlSecret": _secret(f"{name}-url"), "sendResolved": True}]}
    if kind == "pagerduty":
        severity = '{{ if eq .CommonLabels.severity "critical" }}critical{{ else }}warning{{ end }}'
        details = [{"key": "firing", "value": TEXT}]
        key = "pagerduty-escalation-routing-key" if name == "escalation" else "pagerduty-routing-key"
        one = {"routingKey": _secret(key), "description": TITLE, "severity": severity}
        return {"pagerdutyConfigs": [{**one, "details": details}]}
    if kind == "slack":
        channel = "#training-dev" if name == "chat" else "#training-incidents"
        one = {"apiURL": _secret("slack-webhook-url"), "channel": channel, "title": TITLE, "text": TEXT}
        return {"slackConfigs": [{**one, "sendResolved": True}]}
    if kind in ("opsgenie", "teams", "telegram", "discord"):
        return _of_chat(name, kind)
    mail = {
        "to": "training-oncall@example.com",
        "from": "alertmanager@example.com",
        "smarthost": "smtp.example.com:587",
        "authUsername": "alertmanager@example.com",
        "authPassword": _secret("smtp-password"),
        "headers": [{"key": "Subject", "value": TITLE}],
        "text": TEXT,
        "sendResolved": True,
    }
    return {"emailConfigs": [mail]}


def _of_chat(name: str, kind: str) -> dict[str, Any]:
    """Return a receiver of the kinds that the shipped examples have in a file of their own."""
    if kind == "opsgenie":
        priority = '{{ if eq .CommonLabels.severity "critical" }}P1{{ else }}P3{{ end }}'
        key = _secret("opsgenie-escalation-api-key" if name == "escalation" else "opsgenie-api-key")
        texts = {"message": TITLE, "description": TEXT, "priority": priority, "source": "Tachograph"}
        return {"opsgenieConfigs": [{"apiKey": key, **texts}]}
    if kind == "teams":
        one = {"webhookURL": _secret("teams-webhook-url"), "title": TITLE, "text": TEXT}
        return {"msteamsv2Configs": [{**one, "sendResolved": True}]}
    if kind == "telegram":
        bot = {"botToken": _secret("telegram-bot-token"), "chatID": -1001234567890}
        return {"telegramConfigs": [{**bot, "message": f"{TITLE}\n{TEXT}", "sendResolved": True}]}
    one = {"apiURL": _secret("discord-webhook-url"), "title": TITLE, "message": TEXT}
    return {"discordConfigs": [{**one, "sendResolved": True}]}


def _secret(key: str) -> dict[str, str]:
    return {"name": SECRET, "key": key}


def _prometheus_rule(name: str, text: str) -> str:
    head = _object("monitoring.coreos.com/v1", "PrometheusRule", name.removesuffix(".yml").replace("_", "-"), {})
    return routes.dumped(head) + "spec:\n" + indent(text, "  ")


def _exporter(site: Site) -> dict[str, str]:
    return {"exporter.yml": routes.dumped(_config_map("exporter", {"exporter.yml": site.exporter()}))}


def _dashboards(site: Site) -> dict[str, str]:
    found = {}
    for name, text in site.dashboards().items():
        # On one line: as the annotation of a client-side apply, each line of the file would cost its indentation.
        data = {f"tachograph-{name}": json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))}
        title = f"dashboard-{name.removesuffix('.json')}"
        found[f"dashboards/{name.removesuffix('.json')}.yml"] = routes.dumped(
            _config_map(title, data, DASHBOARD_LABELS)
        )
    return found


def _config_map(name: str, data: Mapping[str, str], labels: Mapping[str, str] = LABELS) -> dict[str, Any]:
    return _object("v1", "ConfigMap", name, {"data": dict(data)}, labels)


def _object(
    version: str, kind: str, name: str, rest: Mapping[str, Any], labels: Mapping[str, str] = LABELS
) -> dict[str, Any]:
    metadata = {"name": f"tachograph-{name}", "labels": dict(labels)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
