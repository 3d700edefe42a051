"""`tachograph supervise` over several pods, with a real control plane of Kubernetes: `make test-kubernetes`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tachograph_lab.processes import Children, free_port
from tests.supervise.conftest import is_running, until
from tests.supervise.job_sets import DEFINITION, GROUP, VERSION, JobSets
from tests.supervise.kube_cluster import ROOT, Cluster, Run
from tests.supervise.kubelet import call
from tests.supervise.test_resilient import EVERY, STEPS, TRAIN, assert_made_again, attempts, losses
from tools.binaries import control_plane

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    found = control_plane.find()
    if found is None or shutil.which("kubectl") is None:
        pytest.skip("needs a control plane of Kubernetes and kubectl: make test-kubernetes builds the first")
    with tempfile.TemporaryDirectory(prefix="kube-") as name, Children(Path(name)) as children:
        running = Cluster(Path(name), children, found)
        yield running
        running.clear()


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    one = Run(cluster, request.node.name[5:50].replace("_", "-").rstrip("-"), tmp_path)
    yield one
    one.close()
    cluster.clear()


def test_a_dead_rank_is_restarted_with_all_pods(run: Run) -> None:
    """The findings of both nodes are one run's; all pods of the first attempt are gone before the next one begins."""
    supervisor = run.start()
    first = run.began(0)
    assert {one["node"] for one in first} <= {"n1", "n2", "n3"}
    assert [one["run"] for one in first] == [run.name] * 2
    run.strike(first[1]["node"])
    after = run.began(1)
    assert not any(is_running(one["pid"]) for one in first)
    assert [one["reason"] for one in after] == ["dead"] * 2
    run.finish(supervisor)
    assert run.decisions() == [("act", "dead", "restart")], run.said()
    (decision,) = run.kinds("decision")
    assert decision["nodes"] == [first[1]["node"]]
    (kept,) = (run.state / "evidence").iterdir()
    assert {path.name for path in kept.glob("node-*.json")} == {f"node-{one['node']}.json" for one in first}
    assert [one["how"] for one in run.kinds("ended")] == ["failed", "finished"]


def test_a_killed_supervisor_is_followed_by_one_that_goes_on(run: Run) -> None:
    """Nothing of the training ends with it, and nothing begins."""
    supervisor = run.start()
    first = run.began(0)
    supervisor.kill()
    supervisor.wait()
    run.goes_on()
    second = run.start()
    until(lambda: len(run.kinds("supervisor")) == 2)
    run.goes_on()
    assert all(is_running(one["pid"]) for one in first)
    run.strike(first[0]["node"])
    run.began(1)
    run.finish(second)
    assert run.decisions() == [("act", "dead", "restart")], run.said()
    assert [one["how"] for one in run.kinds("ended")] == ["failed", "finished"]


def test_a_signal_ends_the_supervisor_alone(run: Run) -> None:
    """Its pod may be evicted at any time."""
    supervisor = run.start()
    first = run.began(0)
    supervisor.terminate()
    assert supervisor.wait(60) == -signal.SIGTERM, run.said()
    run.goes_on()
    assert all(is_running(one["pid"]) for one in first)
    assert run.kinds("ended") == []
    run.finish(run.start())
    assert [one["how"] for one in run.kinds("ended")] == ["finished"]


POLICY = """
version: 1
restarts: {per_hour: 6, per_run: 6}
triggers:
  dead:
    for: 1s
    cool_down: 0s
    ladder: [exclude_node: {per_hour: 2, per_run: 2}, restart: {per_hour: 4, per_run: 4}, stop]
  hung: {for: 1s, cool_down: 0s, ladder: [notify, restart: {per_hour: 2, per_run: 2}, stop]}
"""


def impatient(run: Run, policy: str = POLICY) -> tuple[str, str]:
    """Return the option of a policy that waits for nothing."""
    path = run.folder / "policy.yml"
    path.write_text(policy)
    return "--policy", str(path)


def test_a_hang_is_restarted(run: Run) -> None:
    """Its pods run: nobody but the supervisor ends them."""
    container = run.job["spec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "TACHOGRAPH_HANG_SECONDS", "value": "6"})
    supervisor = run.start(*impatient(run))
    first = run.began(0)
    hang = run.folder / f"hang-{first[1]['node']}"
    hang.touch()
    run.awaits("To be done: restart")
    until(lambda: not any(is_running(one["pid"]) for one in first))
    hang.unlink()
    assert [one["reason"] for one in run.began(1)] == ["hung"] * 2
    run.finish(supervisor)
    assert run.decisions() == [("act", "hung", "restart")]


def test_a_node_that_failed_twice_is_left_out(run: Run, cluster: Cluster) -> None:
    """By the affinity of its pods, which the scheduler puts on another one; it is no part of the budget of restarts."""
    cluster.cordon("n3", to=True)
    supervisor = run.start(*impatient(run))
    bad = run.began(0)[0]["node"]
    run.strike(bad)
    assert {one["node"] for one in run.began(1)} == {"n1", "n2"}
    cluster.cordon("n3", to=False)
    run.strike(bad)
    assert {one["node"] for one in run.began(2)} == {"n1", "n2", "n3"} - {bad}
    run.finish(supervisor)
    assert run.decisions() == [("act", "dead", "restart"), ("act", "dead", "exclude_node")]
    assert f"{bad} failed before; another takes its place" in run.kinds("decision")[-1]["why"]


def test_what_a_person_deletes_is_not_made_again(run: Run, cluster: Cluster) -> None:
    """No decision, and no part of the budget; nor by the next supervisor, if none looked meanwhile."""
    supervisor = run.start()
    run.began(0)
    cluster.delete_job(run.name)
    assert supervisor.wait(90) == 3, run.said()
    assert (run.decisions(), [one["how"] for one in run.kinds("ended")]) == ([], ["external"])
    until(lambda: not cluster.pods())
    again = run.start()
    run.began(1)
    again.kill()
    again.wait()
    cluster.delete_job(run.name)
    until(lambda: run.object() is None)
    assert run.start().wait(90) == 3
    assert (run.decisions(), [one["how"] for one in run.kinds("ended")]) == ([], ["external"] * 2)
    assert run.object() is None
    assert f"Job {run.name} was deleted by somebody else" in [one["why"] for one in run.kinds("ended")]
    assert f"Job {run.name} was deleted by somebody else. To start it, give the command again" in run.said()


def test_a_suspended_run_is_left_alone(run: Run, cluster: Cluster) -> None:
    """As by Kueue, of a JobSet, whose pods are its jobs'; it goes on where it was once it is let."""
    call(cluster.admin, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "POST", DEFINITION)
    rights = {"apiGroups": [GROUP], "resources": ["jobsets"], "verbs": ["create", "delete", "get"]}
    cluster.grant("jobsets", rights)
    run.job = {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": "JobSet", "metadata": {"name": run.name},
        "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": run.job["spec"]}}]},
    }  # fmt: skip
    with JobSets(cluster.admin, "training") as controller:
        until(lambda: cluster.works(controller.sets))
        supervisor = run.start(*impatient(run))
        first = run.began(0)
        controller.suspend(run.name, to=True)
        until(lambda: not cluster.pods())
        run.awaits("is suspended")
        controller.suspend(run.name, to=False)
        until(lambda: len(run.plans(0)) == 4)
        run.goes_on()
        assert run.decisions() == []
        run.strike(run.plans(0)[-1]["node"])
        run.began(1)
        assert not any(is_running(one["pid"]) for one in first)
        run.finish(supervisor)
    assert run.decisions() == [("act", "dead", "restart")], run.said()


def test_while_the_api_server_is_away_nothing_is_done(run: Run, cluster: Cluster) -> None:
    """A rank dies meanwhile: what is to be done about it is done once it answers."""
    supervisor = run.start(*impatient(run))
    first = run.began(0)
    cluster.stop_server()
    run.goes_on(500)  # the last answer is 20 s old by then
    run.strike(first[0]["node"])
    until(lambda: ("held", "dead", "scheduler") in run.decisions())
    assert run.plans(1) == []
    cluster.start_server()
    after = run.began(1)
    assert [one["reason"] for one in after] == ["dead"] * 2
    run.finish(supervisor)
    assert [one for one in run.decisions() if one[0] != "held"] == [("act", "dead", "restart")]


def test_a_pod_on_a_node_that_is_lost_is_left_to_a_person(run: Run, cluster: Cluster) -> None:
    """It is not deleted by force; the next attempt begins once it is gone."""
    supervisor = run.start(*impatient(run))
    first = run.began(0)
    lost = first[0]
    (cluster.folder / f"lost-{lost['node']}").touch()
    run.strike(lost["node"])
    until(lambda: len(run.kinds("attempt")) == 2)
    run.awaits(f"waits for pod {lost['pod']} on {lost['node']}")
    assert run.plans(1) == []
    place = f"/api/v1/namespaces/training/pods/{lost['pod']}"
    call(cluster.admin, place, "DELETE", {"gracePeriodSeconds": 0})
    (cluster.folder / f"lost-{lost['node']}").unlink()
    run.began(1)
    run.finish(supervisor)
    assert run.decisions() == [("act", "dead", "restart")]


def test_a_second_supervisor_is_refused(run: Run, tmp_path: Path) -> None:
    """By the lock of the journal; with another journal because the Job is there, and not of that one."""
    supervisor = run.start()
    run.began(0)
    assert run.start().wait(60) == 4
    assert run.start(state=tmp_path / "other").wait(60) == 4
    assert f"Job {run.name} is there already, and not by this journal" in run.said()
    run.goes_on()
    run.finish(supervisor)
    assert [one["how"] for one in run.kinds("ended")] == ["finished"]


KILLED = [
    ("attempt", ""), ("started", ""), ("decision", ""), ("intent", "keep_evidence"), ("intent", "restart"),
    ("outcome", "restart"), ("ended", ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "action"), KILLED, ids=[f"{kind}-{action}".rstrip("-") for kind, action in KILLED])
def test_a_supervisor_that_is_killed_loses_and_repeats_nothing(run: Run, kind: str, action: str) -> None:
    """After an entry of its journal: one restart, one attempt more, and never two at once."""
    dying = run.start(program=("tests.supervise.dying_after", kind, action))
    if kind not in ("attempt", "started"):
        first = run.began(0)
        run.strike(first[1]["node"])
    assert dying.wait(120) == -signal.SIGKILL, run.said()
    second = run.start()
    if kind in ("attempt", "started"):
        first = run.began(0)
        run.strike(first[1]["node"])
    after = run.began(1)
    assert [one["reason"] for one in after] == ["dead"] * 2
    assert not any(is_running(one["pid"]) for one in first)
    run.finish(second)
    restarts = [one for one in run.kinds("intent") if one["action"] == "restart"]
    assert len(restarts) == 1
    assert len(run.kinds("attempt")) == len(run.kinds("ended")) == 2
    assert run.plans(2) == []


def test_one_that_is_killed_as_the_job_is_made(run: Run) -> None:
    """Whether it has noted that or not."""
    supervisor = run.start()
    until(run.object)
    supervisor.kill()
    supervisor.wait()
    second = run.start()
    run.began(0)
    run.finish(second)
    assert len(run.kinds("attempt")) == 1


@pytest.mark.torch
def test_torchrun_in_two_pods_goes_on_where_it_was(run: Run) -> None:
    """A rank is killed: what is trained again has the same losses, bit for bit, in both pods."""
    torchrun = (
        f"exec {sys.executable} -W ignore -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
        f"--rdzv-id $POD_NAMESPACE --rdzv-endpoint localhost:{free_port()} "
        f"{TRAIN} --folder {run.folder} --steps {STEPS} --every {EVERY}"
    )
    container = run.job["spec"]["template"]["spec"]["containers"][0]
    container["command"] = ["env", "GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1", "bash", "-c", torchrun]
    supervisor = run.start()
    until(lambda: all((run.folder / f"losses-{rank}").exists() for rank in range(2)), 180)
    until(lambda: len(losses(run.folder, 0)) > 2 * EVERY + 5)
    os.kill(attempts(run.folder, 1)[-1], signal.SIGKILL)
    assert supervisor.wait(300) == 0, run.said()
    assert run.decisions() == [("act", "dead", "restart")]
    assert_made_again(run.folder)


def test_its_role_is_what_it_needs(run: Run, cluster: Cluster) -> None:
    """By what the API server has noted: it has used each right of the role that is shipped, and needs no other.

    Without the right to create what is beside the Job it goes on: that may be there.
    """
    run.others = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": run.name}, "spec": {"clusterIP": "None"}}
    ]
    supervisor = run.start()
    run.awaits(f"Service {run.name} is not created, and must be there already")
    run.strike(run.began(0)[0]["node"])
    run.began(1)
    run.finish(supervisor)
    (role,) = [
        one
        for one in yaml.safe_load_all((ROOT / "deploy/kubernetes/supervise.yaml").read_text())
        if one["kind"] == "Role"
    ]
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {one for one in cluster.audited() if one[0] != GROUP} == granted
