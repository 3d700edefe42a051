"""What the chart refuses: each value that it does not know or cannot use, by name; nothing is rendered then."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart_rendering import CHART, HASH, ON, run


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("mode=deployment", "'/mode': value must be one of 'daemonset', 'sidecar'"),
        (
            "resources.limits.nvidia\\.com/gpu=1",
            "'/resources/limits': additional properties 'nvidia.com/gpu' not allowed",
        ),
        ("resources.requests.memory=64MB", "'/resources/requests/memory': '64MB' does not match"),
        ("extraArgs={--socket=/elsewhere}", "extraArgs: the chart sets --socket itself"),
        ("extraArgs={rank.series=all}", "'/extraArgs/0': 'rank.series=all' does not match"),
        ("hostPid=true", "additional properties 'hostPid' not allowed"),
        ("hostPID=yes", "'/hostPID': got string, want boolean"),
        ("updateStrategy.maxUnavailable=0", "'/updateStrategy/maxUnavailable': minimum: got 0, want 1"),
        ("updateStrategy.maxUnavailable=0%", "'/updateStrategy/maxUnavailable': '0%' does not match"),
        ("runbookUrl=a b", "'/runbookUrl': 'a b' does not match"),
        ("nodeJob=", "'/nodeJob': '' does not match"),
        ("alertmanagerConfig.receivers={sms}", "'/alertmanagerConfig/receivers/0': value must be one of 'webhook'"),
        ("alertmanagerConfig.receivers=null", "receivers"),
        ("socketFolder=/", "'/socketFolder': '/' does not match"),
        ("image.repository=", "'/image/repository': '' does not match"),
        ("podMonitor=true", "'/podMonitor': got boolean, want object"),
        ("tolerations[0].efect=NoSchedule", "'/tolerations/0': additional properties 'efect' not allowed"),
    ],
)
def test_a_wrong_value_is_named(program: Path, value: str, said: str) -> None:
    """Given as a flag."""
    done = run(program, "template", "tachograph", CHART, "--set", value)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


WRONG = """
extraEnv: [{name: A, valeu: a}]                                     # '/extraEnv/0': additional properties 'valeu' not
extraVolumes: [{name: a}]                                           # '/extraVolumes/0': minProperties: got 1, want 2
affinity: {nodeAfinity: {}}                                         # '/affinity': additional properties 'nodeAfinity'
commonLabels: {a b: c}                                              # '/commonLabels'
podAnnotations: {a: 1}                                              # '/podAnnotations/a': got number, want string
securityContext: {runAsUsr: 1}                                      # '/securityContext': additional properties
service: {type: ExternalName}                                       # '/service/type': value must be one of 'Cluster
port: 0                                                             # '/port': minimum: got 0, want 1
basicAuth: {users: {prometheus: secret}}                            # '/basicAuth/users/prometheus': 'secret'
podMonitor: {enabled: true, interval: 5}                            # '/podMonitor/interval': got number, want string
prometheusRules:
  enabled: true
  thresholds: {hang: 5, hang_seconds: 0}                            # additional properties 'hang' not allowed
  disabled: [rank-dead]                                             # '/prometheusRules/disabled/0': 'rank-dead' does
limits: {hang_seconds: 5, straggler_ratio: 20}                      # '/limits/hang_seconds': minimum: got 5, want 10
alertmanagerConfig: {enabled: true, addresses: {page-url: a}}       # '/alertmanagerConfig/addresses/page-url'
livenessProbe: {exec: {}}                                           # '/livenessProbe': additional properties 'exec'
"""
"""Values, each with what is said of it: Helm says everything at once."""


def test_values_of_the_wrong_shape_are_named(program: Path) -> None:
    """As the schema says, each where it stands."""
    said = refused(program, yaml.safe_load(WRONG))
    expected = re.findall(r"# (.+)", WRONG)
    assert [each for each in expected if each not in said] == []
    assert "'/limits/straggler_ratio': maximum: got 20, want 0.95" in said


def refused(program: Path, values: Mapping[str, Any]) -> str:
    """Return what Helm says instead of rendering."""
    done = run(program, "template", "tachograph", CHART, values=values)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


CLIENTS = {"secretName": "t", "clientAuth": True}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tls": {"clientAuth": True}}, "tls.clientAuth needs tls.secretName"),
        ({"tls": CLIENTS, "podMonitor": ON}, "tls.clientAuth would refuse Prometheus"),
        ({"basicAuth": {"users": {"p": HASH}}, "podMonitor": ON}, "basicAuth.users would refuse Prometheus"),
        ({"podMonitor": {**ON, "interval": "900ms", "scrapeTimeout": "1s"}}, "scrapeTimeout is longer"),
        ({"podMonitor": {**ON, "interval": "59s", "scrapeTimeout": "1m"}}, "scrapeTimeout is longer"),
        ({"prometheusRules": {**ON, "disabled": ["RankDaed"]}}, "there is no alert RankDaed"),
        ({"openshift": ON, "serviceAccount": {"create": False}}, "openshift.enabled needs a service account"),
        ({"extraArgs": ["--web.config.file=/x"]}, "extraArgs: the chart sets --web.config.file itself"),
        ({"extraEnv": [{"name": "NODE_NAME", "value": "a"}]}, "extraEnv: the chart sets NODE_NAME itself"),
        ({"extraVolumes": [{"name": "tls", "emptyDir": {}}]}, "extraVolumes: the chart has a volume tls itself"),
        (
            {"extraVolumeMounts": [{"name": "a", "mountPath": "/run/tachograph"}]},
            "extraVolumeMounts: the chart mounts /run/tachograph itself",
        ),
        ({"podLabels": {"app.kubernetes.io/name": "mine"}}, "podLabels: the chart sets app.kubernetes.io/name itself"),
        ({"service": {"labels": {"helm.sh/chart": "x"}}}, "service.labels: the chart sets helm.sh/chart itself"),
    ],
)
def test_values_that_do_not_go_together_are_named(program: Path, values: Mapping[str, Any], said: str) -> None:
    """Before anything is installed that would be ignored or refused in silence."""
    assert said in refused(program, values)


MAIL = {"to": "a@b.example", "from": "c@d.example", "smarthost": "mx.example:25"}
URL = "https://hooks.example/x"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {},
            "a Secret with the keys chat-url, escalation-url, page-url, ticket-url, watchdog-url in "
            "alertmanagerConfig.secretName",
        ),
        ({"receivers": ["slack"], "secretName": "s"}, "needs alertmanagerConfig.slack.channel"),
        ({"receivers": ["email"], "secretName": "s"}, "needs alertmanagerConfig.email.to"),
        (
            {"receivers": ["email"], "secretName": "s", "email": {**MAIL, "smarthost": ""}},
            "needs alertmanagerConfig.email.smarthost",
        ),
        ({"secretName": "s", "addresses": {"page-url": URL}}, "both secretName and addresses"),
        (
            {"receivers": ["slack"], "slack": {"channel": "#a"}, "addresses": {"slack-webhook-url": URL}},
            "lacks watchdog-url; the chosen receivers need slack-webhook-url, watchdog-url (alertmanagerConfig.watch",
        ),
        ({"addresses": {"page-url": URL}, "watchdog": False}, "alertmanagerConfig.addresses lacks chat-url"),
    ],
)
def test_receivers_without_an_address_are_refused(program: Path, values: Mapping[str, Any], said: str) -> None:
    """None is an example's: the operator would send pages there, or ignore the whole object."""
    assert said in refused(program, {"alertmanagerConfig": {**ON, **values}})
