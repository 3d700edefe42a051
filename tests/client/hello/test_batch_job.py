"""The batch job a process belongs to, by what its scheduler left in the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.client.hello.batch_job import batch_job
from tachograph.client.recorder import Recorder

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "3"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "llama-worker-3"}


@pytest.fixture
def pod(tmp_path: Path) -> tuple[Path, Path]:
    """The namespace file and the hosts file of a pod with a network of its own."""
    namespace, hosts = tmp_path / "namespace", tmp_path / "hosts"
    namespace.write_text("ml-training")
    hosts.write_text("# Kubernetes-managed hosts file.\n127.0.0.1 localhost\n")
    return namespace, hosts


def found(environment: dict[str, str], pod: tuple[Path, Path]) -> dict[str, str]:
    return batch_job(environment, str(pod[0]), str(pod[1]))


def test_outside_of_both_there_is_none(pod: tuple[Path, Path]) -> None:
    """A shell has a HOSTNAME too: without a scheduler's own variables nothing is reported."""
    assert found({"HOSTNAME": "desk", "POD_NAME": "no-pod"}, pod) == {}
    assert batch_job({}) == {}


def test_slurm_by_the_id_that_its_prolog_gets(pod: tuple[Path, Path]) -> None:
    """A job by its number, and a task of an array, also task 0, by its own."""
    assert found(SLURM, pod) == {"scheduler": "slurm", "job_id": "4711"}
    assert found({"SLURM_JOBID": "12"}, pod)["job_id"] == "12"
    array = {**SLURM, "SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "0"}
    assert found(array, pod)["job_id"] == "4711"


def test_the_downward_api_knows_best(pod: tuple[Path, Path]) -> None:
    """POD_NAME and POD_NAMESPACE are what the specification gave; without them, what every pod has."""
    assert found(KUBERNETES, pod) == {"scheduler": "kubernetes", "namespace": "ml-training", "pod": "llama-worker-3"}
    given = {**KUBERNETES, "POD_NAME": "llama-worker-3-x7f2q", "POD_NAMESPACE": "research"}
    assert found(given, pod) == {"scheduler": "kubernetes", "namespace": "research", "pod": "llama-worker-3-x7f2q"}


def test_the_nodes_name_is_no_pods(pod: tuple[Path, Path]) -> None:
    """On the host's network HOSTNAME is the node's: then only the downward API names the pod."""
    pod[1].write_text("# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n")
    assert found(KUBERNETES, pod) == {"scheduler": "kubernetes", "namespace": "ml-training"}
    assert found({**KUBERNETES, "POD_NAME": "p"}, pod)["pod"] == "p"


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """A pod without a service summary's token has no namespace file, and an odd image no hosts file."""
    nowhere = (tmp_path / "none", tmp_path)
    assert found(KUBERNETES, nowhere) == {"scheduler": "kubernetes", "pod": "llama-worker-3"}


def test_slurm_inside_of_kubernetes(pod: tuple[Path, Path]) -> None:
    """If Slurm runs in pods, its job is the job, and the pod is reported as well."""
    assert found({**SLURM, **KUBERNETES}, pod) == {
        "scheduler": "slurm", "job_id": "4711", "namespace": "ml-training", "pod": "llama-worker-3",
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["", " ", "x" * 129, "a\nb", "\x1b[31m", "\udcff"])
def test_values_that_can_be_no_name_are_passed_over(wrong: str, pod: tuple[Path, Path]) -> None:
    """A value that cannot be sent is left out, whether from the environment or from a file, and nothing raises."""
    assert found({"SLURM_JOB_ID": wrong}, pod) == {}
    pod[0].write_bytes(wrong.encode(errors="replace") if wrong != "\udcff" else b"\xff\x00")
    job = found({**KUBERNETES, "HOSTNAME": wrong}, pod)
    assert job.keys() <= {"scheduler", "namespace"}
    assert all(text.isprintable() and len(text) <= 128 for text in job.values())


def test_the_hello_carries_job_and_devices(
    exporter: Any, record: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's variables are reported with the first frame, and again with each hello."""
    for variable in ("KUBERNETES_SERVICE_HOST", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    record(rank=1)
    bare = exporter.wait_for("hello", lambda frame: frame["rank"] == 1)
    assert not {"job", "visible_devices", "granted_devices"} & bare.keys()
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_STEP_GPUS", "4,5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    record(rank=2)
    hello = exporter.wait_for("hello", lambda frame: frame["rank"] == 2)
    assert hello["job"] == {"scheduler": "slurm", "job_id": "4711"}
    assert (hello["visible_devices"], hello["granted_devices"]) == ("0,1", "4,5")
