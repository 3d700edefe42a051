"""What `tachograph supervise -- kubectl create -f FILE` understands, refuses, and makes of a file for an attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.__main__ import main
from tachograph.client.hello.batch_job import batch_job
from tachograph.client.hello.plan import plan_of
from tachograph.supervise.kubernetes.create_command import CreateCommand, read_command
from tachograph.supervise.kubernetes.manifest import Manifest, ManifestError, read, rendered
from tachograph.supervise.plan import AttemptPlan
from tests.supervise.kubelet import expanded

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, labels: {kueue.x-k8s.io/queue-name: gpus}}
spec:
  template:
    metadata: {labels: {app: train}}
    spec:
      restartPolicy: Never
      initContainers: [{name: first, image: a}]
      containers:
        - name: train
          image: a
          env: [{name: TACHOGRAPH_RUN, value: other}, {name: MINE, value: $(TACHOGRAPH_PLAN_STEP)}]
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: train}\nspec: {clusterIP: None}\n"
JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train}
spec:
  replicatedJobs:
    - name: workers
      template: {spec: {template: {spec: {containers: [{name: a, image: a}]}}}}
    - name: driver
      template: {spec: {template: {spec: {containers: [{name: a, image: a}]}}}}
"""
PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master: {template: {spec: {containers: [{name: pytorch, image: a}]}}}
    Worker: {replicas: 3, template: {spec: {containers: [{name: pytorch, image: a}]}}}
"""
PLAN = AttemptPlan("llama-7b", 2, "restart", "dead", 40, "/ckpt/40", skip=((3, 5),))


def manifest(tmp_path: Path, *texts: str) -> Manifest:
    """Return what is read of a file with these documents."""
    path = tmp_path / "train.yaml"
    path.write_text("---\n".join(texts))
    return read(path)


def made(one: Manifest, tmp_path: Path, *left_out: str, plan: AttemptPlan = PLAN) -> dict[str, Any]:
    """Return the object of an attempt."""
    return rendered(one, "llama-7b", "00ff", plan.environment(tmp_path), left_out)


def pods(said: Any) -> list[dict[str, Any]]:
    """Return the templates of pods in an object, wherever they are."""
    if isinstance(said, list):
        return [pod for one in said for pod in pods(one)]
    if not isinstance(said, dict):
        return []
    return [said] if "containers" in said.get("spec", {}) else [pod for one in said.values() for pod in pods(one)]


@pytest.mark.parametrize("text", [JOB, JOBSET, PYTORCHJOB], ids=["job", "jobset", "pytorchjob"])
def test_every_container_of_every_pod_gets_the_plan(tmp_path: Path, text: str) -> None:
    """And is known by the mark of its attempt, as an exporter shows it, under a name that is always the same."""
    one = manifest(tmp_path, text, SERVICE)
    job = made(one, tmp_path)
    assert (job["metadata"]["name"], job["metadata"]["labels"]["tachograph/attempt"]) == ("train", "00ff")
    templates = pods(job["spec"])
    assert len(templates) == len(pods(one.training["spec"])) >= 1
    for template in templates:
        assert template["metadata"]["labels"]["tachograph/attempt"] == "00ff"
        for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", ())):
            given: dict[str, str] = {}
            for entry in container["env"]:
                given[entry["name"]] = expanded(entry["value"], given)
            plan = plan_of(given)
            assert (plan.attempt, plan.reason, plan.step, plan.checkpoint, plan.skip) == (
                2, "dead", 40, "/ckpt/40", ((3, 5),)
            )  # fmt: skip
            assert given["TACHOGRAPH_RUN"] == "llama-7b"
            assert "TACHOGRAPH_PLAN" not in given, "a file on another disk"
            assert batch_job(given) == {"scheduler": "kubernetes", "job_id": "00ff"}


def test_what_is_there_stays(tmp_path: Path) -> None:
    """Labels of queues and services, and a variable of one's own, which may refer to the plan's; so does the file."""
    one = manifest(tmp_path, JOB)
    before = json.dumps(one.training)
    job = made(one, tmp_path, "n1")
    assert json.dumps(one.training) == before
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    (template,) = pods(job["spec"])
    assert template["metadata"]["labels"]["app"] == "train"
    given: dict[str, str] = {}
    for entry in template["spec"]["containers"][0]["env"]:
        given[entry["name"]] = expanded(entry["value"], given)
    assert given["MINE"] == "40"


def test_a_node_that_is_left_out_is_in_every_term(tmp_path: Path) -> None:
    """One of the terms must hold, and so each has to leave it out; what they ask for beside that stays."""
    plain = manifest(tmp_path, JOB)
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    assert "affinity" not in pods(made(plain, tmp_path)["spec"])[0]["spec"]
    (template,) = pods(made(plain, tmp_path, "n2", "n1")["spec"])
    assert template["spec"]["affinity"]["nodeAffinity"] == {key: {"nodeSelectorTerms": [{"matchExpressions": [away]}]}}
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    given = yaml.safe_load(JOB)
    given["spec"]["template"]["spec"]["affinity"] = {
        "podAntiAffinity": {"x": 1},
        "nodeAffinity": {key: {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [1]}]}},
    }
    (template,) = pods(made(manifest(tmp_path, yaml.safe_dump(given)), tmp_path, "n1", "n2")["spec"])
    affinity = template["spec"]["affinity"]
    assert affinity["podAntiAffinity"] == {"x": 1}
    assert affinity["nodeAffinity"][key]["nodeSelectorTerms"] == [
        {"matchExpressions": [zone, away]}, {"matchFields": [1], "matchExpressions": [away]},
    ]  # fmt: skip


def test_hostile_strings_are_no_variables_of_others(tmp_path: Path) -> None:
    """Kubernetes puts a variable in the place of `$(NAME)`, as in a path that a loop has reported."""
    path = "/c/$(AWS_SECRET)/$$(X)/\"'\n: {}$"
    job = made(manifest(tmp_path, JOB), tmp_path, plan=AttemptPlan("r", 1, "restart", "dead", 4, path))
    given = {"AWS_SECRET": "s", "X": "x"}
    for entry in pods(job["spec"])[0]["spec"]["containers"][0]["env"]:
        given[entry["name"]] = expanded(entry["value"], given)
    assert given["TACHOGRAPH_PLAN_CHECKPOINT"] == path
    assert json.loads(json.dumps(job)) == job


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a}]}\n"
DEPLOYMENT = JOB.replace("batch/v1", "apps/v1").replace("kind: Job", "kind: Deployment")
TRAINJOB = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec: {trainer: {}}\n"


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([JOB, JOB.replace("train,", "other,")], "expected one object that trains, and found Job train, Job other"),
        ([SERVICE], "expected one object that trains, and found none"),
        ([""], "expected one object that trains, and found none"),
        ([TRAINJOB], "expected one object that trains, and found none"),
        ([JOB, DEPLOYMENT], "Deployment train has pods, and when it has ended is not known"),
        ([JOB, POD], "Pod p has pods"),
        ([JOB.replace("name: train,", "generateName: train-,")], "a Job has no name of its own"),
        ([JOB.replace("name: train,", "")], "a Job has no name of its own"),
        ([JOB.replace("name: train,", "name: [1],")], "a Job has no name of its own"),
        ([JOB.replace("apiVersion: batch/v1", "apiVersion: 1")], "without apiVersion, kind and metadata"),
        (["- 1\n"], "without apiVersion, kind and metadata"),
        ([JOB.replace("containers:", "containers: []\n      other:")], "Job train has no template of a pod"),
        (["a: [1\n"], "is not YAML or JSON"),
        (["a: &a [*a]\n"], "is not YAML or JSON"),
        (["\0"], "is not YAML or JSON"),
        (["x" * (1 << 20) + "xx"], "has more than 1 MiB"),
    ],
)
def test_a_file_that_no_run_can_be_started_from_is_refused(tmp_path: Path, texts: list[str], why: str) -> None:
    with pytest.raises(ManifestError, match=r"train\.yaml") as error:
        manifest(tmp_path, *texts)
    assert why in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        ("env: [{", "env: [3, {"),
        ("metadata: {labels: {app: train}}", "metadata: 3"),
        ("restartPolicy: Never", "affinity: 3"),
    ],
)  # fmt: skip
def test_another_form_than_that_of_kubernetes_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    one = manifest(tmp_path, JOB.replace(*change))
    with pytest.raises(ManifestError, match="Job train is not of the form that Kubernetes takes"):
        made(one, tmp_path, "n1")


def test_a_list_is_its_objects(tmp_path: Path) -> None:
    """As `kubectl get -o yaml` writes several."""
    items = [yaml.safe_load(JOB), yaml.safe_load(SERVICE)]
    one = manifest(tmp_path, yaml.safe_dump({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))
    assert (one.name, [other["kind"] for other in one.others]) == ("Job train", ["Service"])


def test_kubectls_own_options_are_kept() -> None:
    words = "/usr/bin/kubectl --context=c create -n team -f t.yaml --as me --insecure-skip-tls-verify"
    options = ("--context=c", "--as=me", "--insecure-skip-tls-verify")
    assert read_command(words.split()) == CreateCommand("/usr/bin/kubectl", options, "team", Path("t.yaml"))
    assert read_command(["kubectl", "create", "-ft.yaml", "--namespace=a"]).namespace == "a"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("apply -f t", "expected kubectl create -f FILE, with one file"),
        ("create job x", "expected kubectl create -f FILE, with one file"),
        ("create -f a -f b", "expected kubectl create -f FILE, with one file"),
        ("create", "expected kubectl create -f FILE, with one file"),
        ("create -f", "--filename has no value"),
        ("create -f -", "-f -: expected a file"),
        ("create -f https://x/y", "-f https://x/y: expected a file"),
        ("create -f t -o yaml", "-o is not understood here"),
        ("create -f t --dry-run=server", "--dry-run is not understood here"),
    ],
)
def test_another_command_of_kubectl_is_refused(
    words: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    """With status 2, before anything is begun."""
    assert main(["supervise", "--run", "r", "--state", str(tmp_path), "--", "kubectl", *words.split()]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "command", "why"),
    [
        ([], ["--namespace", "b"], "--namespace b: Job train is in namespace a"),
        (["--exporter", "http://n1:10024"], [], "write {node} where the name of each belongs"),
        (["--spares", "1"], [], "--spares 1"),
    ],
)
def test_wrong_options_are_refused(
    options: list[str], command: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.yaml").write_text(JOB.replace("name: train,", "name: train, namespace: a,"))
    words = ["kubectl", "create", "-f", str(tmp_path / "t.yaml"), *command]
    assert main(["supervise", "--run", "r", "--state", str(tmp_path / "s"), *options, "--", *words]) == 2
    assert why in " ".join(capsys.readouterr().err.split())
