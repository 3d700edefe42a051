"""What the chart's injection does to a pod, by its own expressions; and the snippets for hosts without Kubernetes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart_rendering import MATRIX, ON, ROOT, of_kind, rendered

FOLDER = "/opt/tachograph/auto"
ARMED = "import sys; print(sum(type(each).__name__ == 'TorchHook' for each in sys.meta_path), *sys.path[1:3])"
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "job"},
    "spec": {
        "containers": [
            {"name": "plain", "image": "train"},
            {
                "name": "has",
                "image": "train",
                "env": [{"name": "X", "value": "1"}, {"name": "PYTHONPATH", "value": "/mine"}],
                "volumeMounts": [{"name": "own", "mountPath": "/run/tachograph"}],
            },
            {"name": "empty", "image": "train", "env": [{"name": "PYTHONPATH"}]},
            {
                "name": "elsewhere",
                "image": "train",
                "env": [{"name": "PYTHONPATH", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}],
            },
        ]
    },
}
REQUEST = {"namespace": "research"}
RUNS: list[tuple[dict[str, Any], str]] = [
    ({"name": "job"}, "research-job"),
    ({"generateName": "job-"}, "research-job-"),
    ({"generateName": "job-", "ownerReferences": [{"name": "owner"}]}, "research-owner"),
    ({"name": "job-0", "labels": {"x": "y", "batch.kubernetes.io/job-name": "job"}}, "research-job"),
    (
        {"name": "p", "labels": {"batch.kubernetes.io/job-name": "part", "jobset.sigs.k8s.io/jobset-name": "whole"}},
        "research-whole",
    ),
]
"""Metadata of a pod, and the name of its run."""

PATHS = {"plain": FOLDER, "has": f"{FOLDER}:/mine", "empty": FOLDER}
"""What comes of PYTHONPATH; where its value is not in the pod, the container is left as it is."""


@pytest.fixture(scope="module")
def policy(program: Path) -> dict[str, Any]:
    """The policy of Kubernetes itself."""
    (found,) = of_kind(rendered(program, MATRIX["injection"]), "MutatingAdmissionPolicy").values()
    spec: dict[str, Any] = found["spec"]
    return spec


def test_a_pod_is_taken_by_its_label_or_its_namespaces(program: Path) -> None:
    """By one of two bindings that never take the same pod, nor one with another value of the label."""
    bindings = of_kind(rendered(program, MATRIX["injection"]), "MutatingAdmissionPolicyBinding")
    chosen = {name.rpartition("-")[2]: one["spec"]["matchResources"] for name, one in bindings.items()}
    unlabelled = {"matchExpressions": [{"key": "tachograph/auto", "operator": "DoesNotExist"}]}
    labelled = {"matchLabels": {"tachograph/auto": "true"}}
    assert chosen == {
        "pods": {"objectSelector": labelled},
        "namespaces": {"namespaceSelector": labelled, "objectSelector": unlabelled},
    }
    assert {one["spec"]["policyName"] for one in bindings.values()} == {"tachograph-injection"}


def test_no_pod_fails_by_it(policy: dict[str, Any], program: Path) -> None:
    """A fault of the policy's leaves the pod as it is; without `injection` there is none."""
    assert (policy["failurePolicy"], policy["reinvocationPolicy"]) == ("Ignore", "Never")
    assert policy["matchConstraints"]["resourceRules"][0]["operations"] == ["CREATE"]
    (kyverno,) = of_kind(rendered(program, MATRIX["kyverno"]), "ClusterPolicy").values()
    assert kyverno["spec"]["failurePolicy"] == "Ignore"
    assert not any("injection" in one["metadata"]["name"] for one in rendered(program, {}))


def test_the_socket_is_the_exporters(program: Path) -> None:
    """Its folder on the node, and its image."""
    values = {"injection": ON, "socketFolder": "/var/lib/tacho", "image": {"repository": "registry.example/t"}}
    for engine, kind in (("kubernetes", "MutatingAdmissionPolicy"), ("kyverno", "ClusterPolicy")):
        (found,) = of_kind(rendered(program, {**values, "injection": {**ON, "engine": engine}}), kind).values()
        text = json.dumps(found)
        assert "/var/lib/tacho" in text
        assert "registry.example/t:" in text


def patched(policy: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod that the policy makes of one; messages are maps to the library that evaluates it."""
    celpy = pytest.importorskip("celpy", reason="`make test-all` installs it")

    def evaluated(expression: str, **known: Any) -> Any:
        untyped = re.sub(r"(?:JSONPatch|Object(?:\.\w+)*)\{", "{", expression)
        untyped = re.sub(r"(?<=[{,\s])(\w+):(?=\s)", r'"\1":', untyped)
        environment = celpy.Environment()
        functions = {"indexOf": lambda values, one: celpy.celtypes.IntType(list(values).index(one))}
        return environment.program(environment.compile(untyped), functions=functions).evaluate(known)

    (mutation,) = policy["mutations"]
    (condition,) = policy["matchConditions"]
    seen = celpy.json_to_cel(pod)
    if not evaluated(condition["expression"], object=seen):
        return pod
    known = {"object": seen, "request": celpy.json_to_cel(REQUEST), "variables": celpy.celtypes.MapType()}
    for variable in policy["variables"]:
        name = celpy.celtypes.StringType(variable["name"])
        known["variables"][name] = evaluated(variable["expression"], **known)
    patches = evaluated(mutation["jsonPatch"]["expression"], **known)
    made = deepcopy(pod)
    for patch in json.loads(json.dumps(patches, cls=celpy.CELJSONEncoder)):
        assert patch["op"] == "add"
        *way, last = patch["path"].split("/")[1:]
        place: Any = made
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if isinstance(place, list):
            assert last == "-"
            place.append(patch["value"])
        else:
            place[last] = patch["value"]
    return made


def environment(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the variables of a container by name."""
    return {one["name"]: one for one in container.get("env", [])}


@pytest.mark.slow
def test_a_pod_gets_the_folder_and_the_socket(policy: dict[str, Any]) -> None:
    """In front of what it has on PYTHONPATH, without a second mount at one place, and once."""
    made = patched(policy, POD)
    spec = made["spec"]
    assert [one["name"] for one in spec["volumes"]] == ["tachograph-auto", "tachograph-socket"]
    (init,) = spec["initContainers"]
    assert init["command"] == ["tachograph", "auto", "--copy", FOLDER]
    assert [mount["mountPath"] for mount in init["volumeMounts"]] == [FOLDER]
    for container in spec["containers"]:
        given = environment(container)["PYTHONPATH"]
        assert given.get("value") == PATHS.get(container["name"])
        assert ("valueFrom" in given) is (container["name"] == "elsewhere")
        assert sorted(mount["mountPath"] for mount in container["volumeMounts"]) == [FOLDER, "/run/tachograph"]
    assert environment(spec["containers"][1])["X"] == {"name": "X", "value": "1"}
    assert patched(policy, made) == made
    for metadata, run in RUNS:
        pod = deepcopy(POD) | {"metadata": metadata}
        pod["spec"]["containers"][0]["env"] = [{"name": "TACHOGRAPH_RUN", "value": "mine"}]
        found = [environment(one)["TACHOGRAPH_RUN"] for one in patched(policy, pod)["spec"]["containers"]]
        assert [one["value"] for one in found] == ["mine", run, run, run]


@pytest.mark.slow
def test_kyverno_sets_the_same(program: Path) -> None:
    """By its own language, for the same containers."""
    jmespath = pytest.importorskip("jmespath", reason="`make test-all` installs it")
    (found,) = of_kind(rendered(program, MATRIX["kyverno"]), "ClusterPolicy").values()
    (each,) = found["spec"]["rules"][0]["mutate"]["foreach"]
    (condition,) = each["preconditions"]["all"]
    (container,) = each["patchStrategicMerge"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["name"] == "PYTHONPATH"
    made = {
        element["name"]: jmespath.search(variable["value"].strip("{} "), {"element": element})
        for element in POD["spec"]["containers"]
        if jmespath.search(condition["key"].strip("{} "), {"element": element}) == condition["value"]
    }
    assert made == PATHS
    (each,) = found["spec"]["rules"][1]["mutate"]["foreach"]
    (condition,) = each["preconditions"]["all"]
    (container,) = each["patchStrategicMerge"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["name"] == "TACHOGRAPH_RUN"
    for metadata, run in RUNS:
        known = {"request": {**REQUEST, "object": {"metadata": metadata}}, "element": {"name": "plain"}}
        assert jmespath.search(variable["value"].strip("{} "), known) == run
        assert jmespath.search(condition["key"].strip("{} "), known) == condition["value"]
        known["element"] = {"env": [{"name": "TACHOGRAPH_RUN"}]}
        assert jmespath.search(condition["key"].strip("{} "), known) != condition["value"]


def exported(script: Path, **environment: str) -> str:
    """Return the value of PYTHONPATH that a script for shells sets, or prints for Slurm."""
    code = f'. {script}; printf %s "$PYTHONPATH"' if script.suffix == ".sh" else str(script)
    done = subprocess.run(
        ["/bin/sh", "-ec", code], env={"PATH": os.defpath, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_login_shell_gets_the_folder_once() -> None:
    """In front, and without an empty entry, which would be the working directory."""
    script = ROOT / "deploy/auto/profile.sh"
    assert exported(script) == FOLDER
    assert exported(script, PYTHONPATH="/mine") == f"{FOLDER}:/mine"
    assert exported(script, PYTHONPATH=f"/mine:{FOLDER}") == f"/mine:{FOLDER}"


def test_a_task_of_slurm_gets_the_folder_and_its_name(tmp_path: Path) -> None:
    """As by the other hook, which need not be there."""
    both, job = ROOT / "deploy/slurm/task-prolog-auto", {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "llama"}
    named = "export TACHOGRAPH_RUN=llama-7\n"
    assert exported(both, **job) == f"export PYTHONPATH={FOLDER}\n{named}"
    assert exported(both, PYTHONPATH="/mine", **job) == f"export PYTHONPATH={FOLDER}:/mine\n{named}"
    assert exported(both, PYTHONPATH=FOLDER, **job) == named
    alone = tmp_path / both.name
    alone.write_bytes(both.read_bytes())
    alone.chmod(0o755)
    assert exported(alone) == f"export PYTHONPATH={FOLDER}\n"


GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")


@pytest.mark.skipif(not GENERATOR.is_file(), reason="needs systemd's own reader of environment.d")
def test_systemd_reads_the_same(tmp_path: Path) -> None:
    """For what a user's systemd starts."""
    (tmp_path / "environment.d").mkdir()
    (tmp_path / "environment.d/50-tachograph.conf").write_bytes((ROOT / "deploy/auto/environment.conf").read_bytes())
    for before, after in (({}, FOLDER), ({"PYTHONPATH": "/mine"}, f"{FOLDER}:/mine")):
        given = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path), **before}
        done = subprocess.run([GENERATOR], env=given, capture_output=True, text=True, check=True)
        assert f"PYTHONPATH={after}\n" in done.stdout


def test_what_the_init_container_runs_makes_a_folder_that_records(tmp_path: Path) -> None:
    """The command of the image writes it, and a Python that has it on its path is armed."""
    folder = tmp_path / "auto"
    subprocess.run([sys.executable, "-m", "tachograph", "auto", "--copy", folder], check=True, timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", ARMED], env={"PYTHONPATH": f"{folder}:/mine"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"1 {folder} /mine\n"
