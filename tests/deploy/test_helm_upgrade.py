"""From the last release's chart to this one and back, by Helm itself: it succeeds, and no object is left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart_rendering import CHART, EVERYTHING, MATRIX, ON, rendered
from tests.deploy.kubernetes_api import KubernetesApi

LAST = Path(__file__).with_name("chart-0.1.0")
GIVEN = dict.fromkeys(EVERYTHING, ON) | {"gpu": {"enabled": False}, "monitoringLabels": {"release": "kps"}}
"""The values of the last release's rendering."""

NEW = {**MATRIX["own"], "fullnameOverride": "", "tls": {"secretName": "t"}, "openshift": ON}


class Release:
    """A release `tachograph` in a cluster that keeps its objects."""

    def __init__(self, program: Path, folder: Path, api: KubernetesApi) -> None:
        self.api = api
        self._program, self._folder = program, folder
        homes = {f"HELM_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        self._environment = {**os.environ, **homes, "KUBECONFIG": str(api.kubeconfig(folder / "kubeconfig"))}

    def helm(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """Run Helm, which must succeed; return what it says."""
        given: list[str | Path] = [*arguments, "--qps=1000"]
        if arguments[0] in ("install", "upgrade"):
            given.append("--disable-openapi-validation")  # other tests compare with the schemas
        if values is not None:
            (self._folder / "values.yaml").write_text(yaml.safe_dump(dict(values)))
            given += ["--values", self._folder / "values.yaml"]
        command = [self._program, *given]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def release(program: Path, tmp_path: Path) -> Iterator[Release]:
    """The release as the last chart installed it, with that chart's values."""
    with KubernetesApi() as api:
        made = Release(program, tmp_path, api)
        made.helm("install", "tachograph", LAST, values=GIVEN)
        yield made


def last() -> set[tuple[str, str]]:
    """Return kind and name of the last release's objects."""
    objects = yaml.load_all((LAST / "templates/all.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    return {(one["kind"], one["metadata"]["name"]) for one in objects}


def test_upgrade_rollback_and_uninstall_leave_nothing(program: Path, release: Release) -> None:
    """With everything that the new chart can bring; what only one of them has goes with it."""
    assert release.api.kept() == last()
    release.helm("upgrade", "tachograph", CHART, values=NEW)
    wanted = {(one["kind"], one["metadata"]["name"]) for one in rendered(program, NEW)}
    assert release.api.kept() == wanted
    assert {"Service", "ServiceAccount", "Secret", "SecurityContextConstraints", "Role"} <= {kind for kind, _ in wanted}
    release.helm("rollback", "tachograph", "1")
    assert release.api.kept() == last()
    release.helm("uninstall", "tachograph")
    assert release.api.objects == {}


@pytest.mark.slow
def test_an_upgrade_may_reuse_the_values_of_the_last_release(release: Release) -> None:
    """Which know nothing of this chart's new ones: only the addresses are asked for."""
    secret = "alertmanagerConfig.secretName=tachograph-receivers"
    release.helm("upgrade", "tachograph", CHART, "--reuse-values", "--set", secret)
    kept = release.api.kept()
    assert ("DaemonSet", "tachograph") in kept
    assert ("PodMonitor", "tachograph-exporter") in kept
