"""The lines of docs/deploy/kubernetes.md for a job's pod spec: valid, allowed, and understood by the client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.__main__ import main
from tachograph.client.hello.batch_job import batch_job
from tachograph.client.hello.identity import discover
from tachograph.node.config import read_config
from tachograph.supervise.kubernetes.create_command import read_command

PAGE = (Path(__file__).parents[2] / "docs/deploy/kubernetes.md").read_text(encoding="utf-8")
FIELDS = {"metadata.name": "train-worker-3", "metadata.namespace": "vision"}


def pod(name: str) -> dict[str, Any]:
    """The example of this name, as a pod."""
    (text,) = re.findall(rf"<!-- {name} -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, **yaml.safe_load(text)}
    found["metadata"]["name"] = "example"
    return found


def launchers() -> dict[str, str]:
    """The label with a job's name, by launcher."""
    return dict(re.findall(r"^\| (\w[^|]*?) \| `([\w./-]+)` \|", PAGE, re.MULTILINE))


def environment(entries: list[dict[str, Any]], labels: Mapping[str, str]) -> dict[str, str]:
    """Return what the kubelet makes of a container's `env`."""
    found: dict[str, str] = {}
    for entry in entries:
        if "value" in entry:
            found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], entry["value"])
            continue
        path = entry["valueFrom"]["fieldRef"]["fieldPath"]
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        found[entry["name"]] = labels.get(label[1], "") if label else FIELDS[path]
    return found


def test_the_table_has_every_launcher() -> None:
    assert set(launchers().values()) == {
        "training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name", "volcano.sh/job-name",
        "batch.kubernetes.io/job-name",
    }  # fmt: skip


@pytest.mark.parametrize("label", launchers().values())
@pytest.mark.parametrize(
    ("own", "rank", "local_rank", "world_size"),
    [
        # kubeflow/training-operator's envvar.go and Volcano's pytorch plugin: by pod.
        ({"MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456", "RANK": "3", "WORLD_SIZE": "4"}, 3, 0, 4),
        # torchrun in such a pod, as in one of a JobSet.
        (
            {"RANK": "25", "LOCAL_RANK": "1", "WORLD_SIZE": "32", "TORCHELASTIC_RUN_ID": "none",
             "JOB_COMPLETION_INDEX": "3"},
            25, 1, 32,
        ),
    ],
)  # fmt: skip
def test_the_client_reads_run_rank_and_pod(
    label: str, own: Mapping[str, str], rank: int, local_rank: int, world_size: int
) -> None:
    """From the example with the launcher's label, and what the launcher sets itself."""
    (container,) = pod("job")["spec"]["containers"]
    entries = [
        {**entry, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}
        if entry["name"] == "JOB"
        else entry
        for entry in container["env"]
    ]
    given = environment(entries, {label: "train"}) | own | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    found = discover({}, given)
    assert (found.run, found.rank, found.local_rank, found.world_size) == ("vision-train", rank, local_rank, world_size)
    assert batch_job(given) == {"scheduler": "kubernetes", "namespace": "vision", "pod": "train-worker-3"}


def test_a_jobset_counts_its_restarts() -> None:
    """Also where torchrun, new in each of them, counts from 0."""
    assert "`TACHOGRAPH_ATTEMPT` from `metadata.labels['jobset.sigs.k8s.io/restart-attempt']`" in " ".join(PAGE.split())
    assert discover({}, {"TACHOGRAPH_ATTEMPT": "2", "TORCHELASTIC_RESTART_COUNT": "0"}).attempt == 2


def test_the_sidecar_is_allowed_where_the_daemonset_is_not() -> None:
    """Nothing that Pod Security `restricted` forbids; its socket is where the client looks for it."""
    spec = pod("sidecar")["spec"]
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(spec)
    assert [set(volume) - {"name"} for volume in spec["volumes"]] == [{"emptyDir"}]
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    (sidecar,) = spec["initContainers"]
    for container in (sidecar, *spec["containers"]):
        assert container["securityContext"]["runAsNonRoot"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    config = read_config(sidecar["args"][1:], {})
    assert config.listen_address == (None, sidecar["ports"][0]["containerPort"])
    assert {mount["mountPath"] for one in (sidecar, *spec["containers"]) for mount in one["volumeMounts"]} == {
        str(config.socket.parent)
    }


def test_a_supervised_job_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Its command is understood once the kubelet has put in the variables; its journal outlives the pod."""
    spec = pod("supervised")["spec"]
    (container,) = spec["containers"]
    given = {"HOST_IP": "10.0.0.7"} | {one["name"]: one["value"] for one in container["env"] if "value" in one}
    program, *words = [
        re.sub(r"\$\((\w+)\)", lambda name: given[name[1]], word)
        for word in (*container["command"], *container["args"])
    ]
    place = words.index("--")
    assert program == "tachograph"
    assert main([*words[:place], "--show-policy"]) == 0
    assert capsys.readouterr().out.startswith("# What `tachograph supervise` does")
    assert words[place + 1] == "torchrun"
    (state,) = [word.partition("=")[2] for word in words if word.startswith("--state=")]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (kept,) = [one for one in spec["volumes"] if one["name"] == mounts[str(Path(state).parent)]]
    assert "persistentVolumeClaim" in kept


@pytest.mark.slow
@pytest.mark.parametrize("name", ["job", "supervised", "sidecar"])
def test_kubernetes_accepts_the_examples(name: str) -> None:
    """Strictly."""
    validator = pytest.importorskip("kubernetes_validate", reason="`make test-all` installs it")
    validator.validate(pod(name), "1.37", strict=True)


SUPERVISE = Path(__file__).parents[2] / "deploy/kubernetes/supervise.yaml"


def supervise_objects() -> dict[str, Any]:
    """Return what the supervisor from outside stands on, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(SUPERVISE.read_text(encoding="utf-8"))}


def test_a_supervisor_from_outside_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Its command is understood; its role, its state and the file that it reads are those beside it."""
    found = supervise_objects()
    assert {one["metadata"]["namespace"] for one in found.values()} == {"training"}
    spec = found["Job"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    place = container["args"].index("--")
    assert container["args"][0] == "supervise"
    assert main([*container["args"][:place], "--show-policy"]) == 0
    assert capsys.readouterr().out.startswith("# What `tachograph supervise` does")
    assert read_command(container["args"][place + 1 :]).file == Path("/train/train.yaml")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {one["name"]: one for one in spec["volumes"]}
    assert (
        volumes[mounts["/state"]]["persistentVolumeClaim"]["claimName"]
        == (found["PersistentVolumeClaim"]["metadata"]["name"])
    )
    assert f"configmap {volumes[mounts['/train']]['configMap']['name']} --from-file=train.yaml" in PAGE
    account = found["ServiceAccount"]["metadata"]["name"]
    assert {spec["serviceAccountName"], found["RoleBinding"]["subjects"][0]["name"]} == {account}
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]


def test_a_supervisor_that_has_ended_for_good_is_not_started_again() -> None:
    """By its statuses: a stop by policy would be none. One that was killed or evicted, or found another one, is."""
    (_, of_exit) = supervise_objects()["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert of_exit["action"] == "FailJob"
    assert of_exit["onExitCodes"] == {"containerName": "supervise", "operator": "NotIn", "values": [4, 137, 143]}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_accepts_the_supervisor(version: str) -> None:
    """Strictly, from the release on in which its policy for failed pods is stable."""
    validator = pytest.importorskip("kubernetes_validate", reason="`make test-all` installs it")
    for one in yaml.safe_load_all(SUPERVISE.read_text(encoding="utf-8")):
        validator.validate(one, version, strict=True)
