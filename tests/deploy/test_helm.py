"""The Helm chart, by Helm itself: what it renders, what it refuses, and that it is the bundle's."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph import __version__
from tachograph.bundle import kubernetes
from tachograph.bundle.site import Site
from tachograph_lab.processes import Children, free_port
from tests.deploy.chart_rendering import CHART, EVERYTHING, MATRIX, ROOT, daemon_set, of_kind, rendered, run
from tools import chart

OTHERS = ("monitoring.coreos.com/", "security.openshift.io/", "kyverno.io/")
"""Versions of objects that are not of Kubernetes itself."""

SECRET_LIMIT = 1 << 20
"""Bytes of a Kubernetes Secret, in which Helm keeps a release."""


def test_what_is_made_is_current(program: Path) -> None:
    """The committed chart is the one that `make chart` writes."""
    for path, text in chart.files().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: run `make chart`"
    assert (ROOT / chart.MANIFEST).read_text(encoding="utf-8") == chart.manifest(program), "run `make chart`"


def test_the_chart_has_the_version_of_the_package() -> None:
    """Which is the tag of the image, too."""
    found = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (found["version"], found["appVersion"]) == (__version__, __version__)


OPERATORS = ("PodMonitor", "PrometheusRule", "AlertmanagerConfig")
WHOLE_MATRIX = [pytest.param(name, marks=[] if name == "everything" else pytest.mark.slow) for name in MATRIX]


@pytest.mark.parametrize("name", WHOLE_MATRIX)
def test_helm_lints_it(program: Path, name: str) -> None:
    """With warnings as errors."""
    done = run(program, "lint", "--strict", CHART, values=MATRIX[name])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", WHOLE_MATRIX)
def test_objects_are_named_once_and_get_their_namespace_from_helm(program: Path, name: str) -> None:
    """As those of the bundle; each object is one of this release."""
    objects = rendered(program, MATRIX[name])
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)
    for one in objects:
        assert "namespace" not in one["metadata"] or (name, one["kind"]) == ("own", "ConfigMap")
        assert "tachograph" in one["metadata"]["name"] or one["kind"] == "ServiceAccount"
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "tachograph"


def test_the_exporter_has_no_right_that_it_does_not_need(program: Path) -> None:
    """Not root, nothing to write to but the socket's folder, no capability, no GPU, no token; in every rendering.

    Unless the values say otherwise.
    """
    for name, values in MATRIX.items():
        objects = rendered(program, values)
        if values.get("mode") == "sidecar":
            assert {one["kind"] for one in objects} <= {*OPERATORS, "ConfigMap"}
            continue
        if name == "own":
            continue
        pod = daemon_set(objects)["template"]["spec"]
        usual = {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        on_openshift = {"seLinuxOptions": {"type": "spc_t", "level": "s0"}} if name == "openshift" else {}
        assert pod["securityContext"] == usual | on_openshift
        assert pod["automountServiceAccountToken"] is False
        assert "hostNetwork" not in pod
        (exporter,), (init,) = pod["containers"], pod["initContainers"]
        minimal = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert exporter["securityContext"] == minimal
        as_root = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
        assert init["securityContext"] == minimal | as_root | {"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}
        for container in (exporter, init):
            assert container["volumeMounts"][0] == {"name": "socket", "mountPath": "/run/tachograph"}
            own = {"name": "own-socket", "mountPath": "/run/tachograph-web"}
            assert all(mount["readOnly"] for mount in container["volumeMounts"][1:] if mount != own)
            assert set(container["resources"].get("limits", {})) <= {"cpu", "memory"}


@pytest.mark.parametrize("name", ["dcgm", "nvidia"])
def test_gpus_are_read_only_where_they_should_be(program: Path, name: str) -> None:
    """Beside dcgm-exporter neither NVIDIA's runtime nor NVML."""
    pod = daemon_set(rendered(program, MATRIX[name]))["template"]["spec"]
    (exporter,) = pod["containers"]
    reads = name == "nvidia"
    assert (
        "runtimeClassName" in pod,
        "NVIDIA_VISIBLE_DEVICES" in str(exporter["env"]),
        "--no-gpu" in exporter["args"],
    ) == (reads, reads, not reads)
    assert ("--rank.series=all" in exporter["args"]) is not reads


def test_the_exporter_takes_the_arguments(program: Path) -> None:
    """Those of the chart, by the exporter's own parser; and they are the folder and the port that the pod has."""
    from tachograph.node.config import read_config

    pod = daemon_set(rendered(program, MATRIX["dcgm"]))["template"]["spec"]
    (exporter,) = pod["containers"]
    assert exporter["args"][0] == "exporter"
    config = read_config(exporter["args"][1:], {})
    assert config.listen_address == (None, exporter["ports"][0]["containerPort"])
    assert str(config.socket.parent) == exporter["volumeMounts"][0]["mountPath"]
    assert config.rank_series == "all"
    assert not config.gpu_enabled


def test_the_exporter_answers_the_probes(program: Path, tmp_path: Path) -> None:
    """A real one with the pod's arguments, but for the folder and the port."""
    pod = daemon_set(rendered(program, MATRIX["dcgm"]))["template"]["spec"]
    (exporter,) = pod["containers"]
    port = free_port()
    arguments = [
        one.replace("/run/tachograph", str(tmp_path)).replace(":10024", f"127.0.0.1:{port}") for one in exporter["args"]
    ]
    with Children(tmp_path) as children:
        child = children.start("exporter", [sys.executable, "-m", "tachograph", *arguments])
        child.wait_until(lambda: "msg=serving" in child.log.read_text(encoding="utf-8"), 60)
        for probe in ("readinessProbe", "livenessProbe"):
            path = exporter[probe]["httpGet"]["path"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                assert answer.status == 200


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.parametrize("owner", [0, 65532])
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_the_folder_is_the_exporters_after_the_init_container(
    program: Path, tmp_path: Path, owner: int, mode: int
) -> None:
    """With no other capability than the one it asks for, whoever had the folder before."""
    (init,) = daemon_set(rendered(program, {}))["template"]["spec"]["initContainers"]
    folder = tmp_path / "tachograph"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, owner, owner)
    command = [word.replace("/run/tachograph", str(folder)) for word in init["command"]]
    limited = ["setpriv", "--inh-caps=-all", "--bounding-set=-all,+chown", "--no-new-privs", "--clear-groups"]
    done = subprocess.run([*limited, *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = folder.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65532, 65532, 0o755)


ADDRESSES = {
    "#training-incidents": "#gpu-pages",
    "#training-dev": "#gpu-dev",
    "training-oncall@example.com": "ops@hpc.example",
    "from: alertmanager@example.com": "from: am@hpc.example",
    "authUsername: alertmanager@example.com": "authUsername: am",
    "smtp.example.com:587": "mx.hpc.example:25",
}
"""The examples of a bundle, and what the values of `site` have in their place."""

BUNDLES = {
    "everything": Site({"exporter_url": ""}, ("webhook",)),
    "site": Site(
        {
            "node_job": "hosts",
            "runbook_url": "https://b.example",
            "grafana_url": "https://g.example",
            "exporter_url": "https://e.example/NODE",
        },
        ("pagerduty", "slack", "email"),
        limits={"hang_seconds": 45, "throughput_drop_ratio": 0.25},
    ),
}


@pytest.mark.parametrize("name", BUNDLES)
def test_the_operators_objects_are_those_of_the_bundle(program: Path, name: str) -> None:
    """`tachograph bundle --format operator` with the same addresses, jobs, limits and receivers; but for labels."""
    objects = {(one["kind"], one["metadata"]["name"]): one for one in rendered(program, MATRIX[name])}
    for path, text in kubernetes.operator(BUNDLES[name]).items():
        if not path.endswith(".yml") or path in {"alertmanager-templates.yml", "exporter.yml"}:
            continue
        if path == "alertmanagerconfig.yml" and name == "site":
            for example, own in ADDRESSES.items():
                text = text.replace(example, own)  # noqa: PLW2901
        wanted = yaml.load(text, yaml.CSafeLoader)
        found = objects.pop((wanted["kind"], wanted["metadata"]["name"]))
        for one in (found, wanted):
            del one["metadata"]
            if one["kind"] == "ConfigMap":
                one["data"] = {key: json.loads(text) for key, text in one["data"].items()}
            if one["kind"] == "PodMonitor":  # the bundle's finds every exporter, that of the chart its own
                del one["spec"]["selector"]
        wanted["spec"].pop("namespaceSelector", None) if "spec" in wanted else None
        assert found == wanted
    assert {kind for kind, _ in objects} == {"DaemonSet", "NetworkPolicy", "ServiceAccount"}


def test_prometheus_and_grafana_find_them(program: Path) -> None:
    """By the labels of kube-prometheus-stack; the PodMonitor finds the pods of the DaemonSet and their port."""
    objects = rendered(program, MATRIX["everything"])
    for kind in ("PodMonitor", "PrometheusRule", "AlertmanagerConfig"):
        for one in of_kind(objects, kind).values():
            assert one["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    for one in of_kind(objects, "ConfigMap").values():
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
    template = daemon_set(objects)["template"]
    (monitor,) = of_kind(objects, "PodMonitor").values()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (port,) = template["spec"]["containers"][0]["ports"]
    assert [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] == [port["name"]]


def test_a_release_fits_into_its_secret(program: Path) -> None:
    """With everything switched on, and room for a third more."""
    done = run(program, "install", "t", CHART, "--dry-run=client", "--output=json", values=EVERYTHING)
    assert done.returncode == 0, done.stderr
    stored = base64.b64encode(gzip.compress(json.dumps(json.loads(done.stdout)).encode()))
    assert len(stored) < SECRET_LIMIT * 3 / 4


def test_every_value_is_described_and_checked() -> None:
    """values.yaml, with a comment for each part, and the schema know the same names."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) == {*values, "global"}


@pytest.fixture(scope="module")
def validate() -> Any:
    """The check of an object by the schemas of the Kubernetes API; `make test-all` installs it."""
    return pytest.importorskip("kubernetes_validate", reason="`make test-all` installs it").validate


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.25", "1.37"])
@pytest.mark.parametrize("name", MATRIX)
def test_kubernetes_accepts_every_object(program: Path, validate: Any, name: str, version: str) -> None:
    """Strictly: no field that the API does not know. Those of others have schemas of their own."""
    for one in rendered(program, MATRIX[name]):
        is_newer = version == "1.25" and one["kind"].startswith("MutatingAdmissionPolicy")
        if not is_newer and not one["apiVersion"].startswith(OTHERS):
            validate(one, version, strict=True)


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema that refuses fields which it does not know."""
    for one in (schema, *schema.get("$defs", {}).values()):
        if "properties" in one:
            one.setdefault("additionalProperties", False)
    return schema


@pytest.fixture(scope="module")
def operator_schemas() -> Mapping[str, dict[str, Any]]:
    """The schemas of the operator's objects, from models that were generated from its CRDs."""
    models = pytest.importorskip("cloudcoil.models.prometheus_operator", reason="`make test-all` installs it")
    kinds = (models.v1.PodMonitor, models.v1.PrometheusRule, models.v1alpha1.AlertmanagerConfig)
    return {kind.__name__: strict(kind.model_json_schema()) for kind in kinds}


def operators_objects(program: Path) -> Iterator[dict[str, Any]]:
    for name in ("everything", "site", "closed", "own"):
        yield from (
            one for one in rendered(program, MATRIX[name]) if one["apiVersion"].startswith("monitoring.coreos.com/")
        )


@pytest.mark.slow
def test_the_operator_accepts_every_object(program: Path, operator_schemas: Mapping[str, dict[str, Any]]) -> None:
    """Strictly; a field that is none and a value of another type are refused."""
    from jsonschema import Draft202012Validator

    validators = {kind: Draft202012Validator(schema) for kind, schema in operator_schemas.items()}
    seen = set()
    for one in operators_objects(program):
        errors = [f"{error.json_path}: {error.message}" for error in validators[one["kind"]].iter_errors(one)]
        assert not errors, (one["metadata"]["name"], errors)
        seen.add(one["kind"])
        one["spec"]["made_up"] = 1
        assert not validators[one["kind"]].is_valid(one)
    assert seen == set(validators)
