"""The chart as Helm renders it, and the combinations of values that several tests look at."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools import chart

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / chart.CHART
PASSWORD, HASH = "correct horse", "$2a$04$H4Y2tgqqRTAxtGBnv/S44uWD8Z1Rf3HsOYKrTMkTIWQIoJ.nmjAty"

ON = {"enabled": True}
EVERYTHING: Mapping[str, Any] = {
    "podMonitor": ON,
    "prometheusRules": ON,
    "alertmanagerConfig": {**ON, "secretName": "tachograph-receivers"},
    "dashboards": ON,
}
MATRIX: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "everything": {**EVERYTHING, "monitoringLabels": {"release": "kube-prometheus-stack"}},
    "sidecar": {**EVERYTHING, "mode": "sidecar"},
    "nvidia": {
        "gpu": {"runtimeClassName": "nvidia"},
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "priorityClassName": "system-node-critical",
        "updateStrategy": {"maxUnavailable": 3},
    },
    "dcgm": {"gpu": {"enabled": False}, "hostPID": False, "extraArgs": ["--rank.series=all"]},
    "mirror": {
        "image": {
            "repository": "registry.example:5000/gpu/tachograph", "tag": "1.2", "pullSecrets": [{"name": "pull"}],
        },
        "tolerations": [{"key": "", "operator": "Exists"}],
        "resources": {"limits": {"cpu": 1}},
    },
    "policy": {"networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}},
    "open": {"networkPolicy": {"enabled": False}, "socketFolder": "/var/run/tachograph"},
    "site": {
        **EVERYTHING,
        "nodeJob": "hosts",
        "runbookUrl": "https://b.example/",
        "grafanaUrl": "https://g.example",
        "exporterUrl": "https://e.example/NODE/",
        "prometheusRules": ON,
        "limits": {"hang_seconds": 45, "throughput_drop_ratio": 0.25},
        "alertmanagerConfig": {
            **ON,
            "secretName": "tachograph-receivers",
            "receivers": ["pagerduty", "slack", "email"],
            "slack": {"channel": "#gpu-pages", "devChannel": "#gpu-dev"},
            "email": {
                "to": "ops@hpc.example", "from": "am@hpc.example", "smarthost": "mx.hpc.example:25", "username": "am",
            },
        },
    },
    "closed": {
        "podMonitor": ON,
        "tls": {"secretName": "tachograph-tls", "clientAuth": True, "scraperSecretName": "prometheus-tls"},
        "basicAuth": {"users": {"prometheus": HASH}, "secretName": "tachograph-password"},
    },
    "openshift": {"openshift": ON, "podMonitor": ON},
    "injection": {"injection": ON},
    "kyverno": {"injection": {**ON, "engine": "kyverno"}},
    "own": {
        "fullnameOverride": "tachograph-h100",
        "commonLabels": {"team": "platform"},
        "hostNetwork": True,
        "port": 9445,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                }
            }
        },
        "extraEnv": [
            {"name": "TZ", "value": "UTC"},
            {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        ],
        "extraVolumes": [{"name": "jobs", "hostPath": {"path": "/run/tachograph-jobs", "type": "DirectoryOrCreate"}}],
        "extraVolumeMounts": [{"name": "jobs", "mountPath": "/run/tachograph-jobs", "readOnly": True}],
        "extraArgs": ["--gpu.job-mapping-dir=/run/tachograph-jobs"],
        "revisionHistoryLimit": 0,
        "daemonSetAnnotations": {"reloader": "auto"},
        "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
        "podLabels": {"cost-center": "42"},
        "podSecurityContext": {"runAsUser": 1001, "fsGroup": 2000},
        "securityContext": {"capabilities": {"add": ["SYSLOG"]}, "runAsGroup": 1002},
        "livenessProbe": {"periodSeconds": 30},
        "readinessProbe": {"initialDelaySeconds": 2},
        "serviceAccount": {"name": "gpu-monitor", "annotations": {"why": "pull"}},
        "service": {
            **ON, "clusterIP": "None", "port": 80, "internalTrafficPolicy": "Local",
            "labels": {"scope": "node"}, "annotations": {"a": "b"},
        },
        "podMonitor": {
            **ON, "interval": "15s", "scrapeTimeout": "10s", "labels": {"prometheus": "gpu"}, "annotations": {"c": "d"},
            "relabelings": [{"targetLabel": "cluster", "replacement": "a"}],
            "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "python_.*"}],
        },
        "prometheusRules": {
            **ON, "labels": {"role": "rules"}, "annotations": {"e": "f"}, "disabled": ["GpuPowerCapped"],
        },
        "dashboards": {
            **ON, "labels": {"grafana_dashboard": "yes"}, "annotations": {"grafana_folder": "Training"},
            "namespace": "grafana",
        },
        "alertmanagerConfig": {
            **ON, "receivers": ["slack"], "watchdog": False, "slack": {"channel": "#train"}, "labels": {"am": "main"},
            "addresses": {"slack-webhook-url": "https://hooks.example/x"},
        },
    },
}  # fmt: skip


def run(
    program: Path, *arguments: str | Path, values: Mapping[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Helm, with these values if there are any."""
    given = [] if values is None else ["--values", "-"]
    return subprocess.run(
        [program, *arguments, *given],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rendered(
    program: Path, values: Mapping[str, Any], release: str = "tachograph", namespace: str = "default"
) -> list[dict[str, Any]]:
    """Return the objects that the chart makes of these values."""
    done = run(program, "template", release, CHART, "--namespace", namespace, values=values)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def daemon_set(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the spec of the only DaemonSet."""
    (found,) = of_kind(objects, "DaemonSet").values()
    spec: dict[str, Any] = found["spec"]
    return spec
