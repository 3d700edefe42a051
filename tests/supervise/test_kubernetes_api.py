"""What the API server says, read from its JSON, and kubectl where it does not do what it should."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tachograph.files.unreadable import UNREADABLE
from tachograph.supervise.kubernetes import api as module
from tachograph.supervise.kubernetes.api import ApiError, KubernetesApi
from tachograph.supervise.kubernetes.manifest import Manifest
from tachograph.supervise.kubernetes.state import object_seen, pods_seen
from tachograph.supervise.kubernetes.training_object import TrainingObject

CAPTURES = Path(__file__).parent / "kubernetes"


def captured(name: str) -> Any:
    """Return what the API server of Kubernetes 1.20 said."""
    return json.loads((CAPTURES / f"{name}.json").read_text())


def test_how_a_job_ends() -> None:
    seen = {name: object_seen(captured(name)) for name in ("job-running", "job-complete", "job-failed", "job-deleted")}
    assert {name: one.status for name, one in seen.items()} == {
        "job-running": None, "job-complete": 0, "job-failed": 1, "job-deleted": None,
    }  # fmt: skip
    assert seen["job-failed"].why == "BackoffLimitExceeded: Job has reached the specified backoff limit"
    assert [name for name, one in seen.items() if one.is_being_deleted] == ["job-deleted"]
    assert len({one.mark for one in seen.values()}) == len({one.uid for one in seen.values()}) == 4


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        ([("Completed", "True")], 0),  # JobSet
        ([("Failed", "True")], 1),
        ([("Created", "True"), ("Running", "False"), ("Succeeded", "True")], 0),  # Kubeflow
        ([("Created", "True"), ("Running", "True"), ("Restarting", "True")], None),
        ([("Failed", "False"), ("Suspended", "True")], None),
        ([("SuccessCriteriaMet", "True")], None),  # its pods are still there (Kubernetes 1.31)
        ([("FailureTarget", "True")], None),
    ],
)
def test_how_other_objects_end(conditions: list[tuple[str, str]], status: int | None) -> None:
    said = captured("job-running")
    said["status"] = {"conditions": [{"type": kind, "status": is_so} for kind, is_so in conditions]}
    assert object_seen(said).status == status


@pytest.mark.parametrize("spec", [{"suspend": True}, {"runPolicy": {"suspend": True}}])
def test_an_object_that_is_suspended(spec: dict[str, Any]) -> None:
    """A Job or a JobSet, and one of Kubeflow's."""
    said = captured("job-running")
    assert not object_seen(said).is_suspended
    assert object_seen({**said, "spec": spec}).is_suspended


def test_pods_and_for_what_they_wait() -> None:
    seen = {one.name.rpartition("-")[0]: one for one in pods_seen(captured("pods"))}
    assert {name: (one.phase, one.node != "", one.is_being_deleted) for name, one in seen.items()} == {
        "runs": ("Running", True, False), "too-large": ("Pending", False, False), "going": ("Running", True, True),
    }  # fmt: skip
    assert seen["runs"].address == "127.0.0.1"
    assert seen["too-large"].waits == "0/3 nodes are available: 3 Insufficient cpu."
    assert not any(one.is_lost for one in seen.values())


def test_a_pod_whose_image_cannot_be_pulled() -> None:
    """And one whose node is gone, as newer releases say."""
    said = captured("pods")
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image \x1b[31m"}
    pod = next(one for one in said["items"] if one["metadata"]["name"].startswith("runs"))
    pod["status"] = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    waits = pods_seen({"items": [pod]})[0].waits
    assert waits.startswith("ImagePullBackOff: Back-off pulling image ")
    assert "\x1b" not in waits
    for reason, is_lost in (("DeletionByTaintManager", True), ("PreemptionByScheduler", False)):
        pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
        assert pods_seen({"items": [pod]})[0].is_lost is is_lost


@pytest.mark.parametrize("said", [{}, {"metadata": 3}, {"metadata": {"uid": "u"}, "status": {"conditions": [3]}}])
def test_something_else_is_not_taken_for_an_object(said: dict[str, Any]) -> None:
    with pytest.raises(UNREADABLE):
        object_seen(said)
    with pytest.raises(UNREADABLE):
        pods_seen(said)


def kubectl(folder: Path, script: str) -> KubernetesApi:
    """Return the API server behind a program that is not what it should be."""
    program = folder / "kubectl"
    program.write_text(f"#!{sys.executable}\nimport os, pathlib, socket, sys, time\n{script}")
    program.chmod(0o755)
    return KubernetesApi(str(program), ["--context=c"])


def test_kubectl_that_refuses_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 90.0)
    api = kubectl(tmp_path, """sys.exit('error: context "c" does not exist')\n""")
    with pytest.raises(ApiError, match='does not listen: error: context "c" does not exist') as error:
        api.get("/version")
    assert not error.value.is_refusal, "another answer may come"
    api.close()
    with pytest.raises(ApiError, match="does not listen"):
        KubernetesApi(str(tmp_path / "none"), []).get("/version")


SILENT = """
pathlib.Path(sys.argv[0]).with_name("pid").write_text(str(os.getpid()))
assert sys.argv[1:3] == ["--context=c", "proxy"]
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[3].partition("=")[2])
time.sleep(0.3)  # nobody can connect meanwhile
server.listen()
time.sleep(60)
"""


def test_nothing_is_left_of_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither process nor socket, which nobody else could open; it is waited for until it listens there."""
    monkeypatch.setattr(module, "START_SECONDS", 90.0)
    monkeypatch.setattr(module, "ASK_SECONDS", 0.2)
    api = kubectl(tmp_path, SILENT)
    with pytest.raises(ApiError, match=r"the API server does not answer: .*timed out"):
        api.get("/version")
    folder = api._folder
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    api.close()
    assert not folder.exists()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


FORBIDS = """
import http.server, json, socketserver

class Handler(http.server.BaseHTTPRequestHandler):
    def say(self, status, said):
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        name, kind = ("jobs", "Job") if self.path == "/apis/batch/v1" else ("services", "Service")
        self.say(200, {"resources": [{"name": name, "kind": kind, "namespaced": True}]})

    def do_POST(self):
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_job = self.path == "/apis/batch/v1/namespaces/a/jobs"
        made["metadata"]["uid"] = "u"
        self.say(201 if is_job else 403, made if is_job else {"message": "services is forbidden"})

    def address_string(self):
        return ""

socketserver.UnixStreamServer(sys.argv[3].partition("=")[2], Handler).serve_forever()
"""


def test_what_may_not_be_created_beside_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and the Job is created: the API server refuses it whether it is there or not."""
    monkeypatch.setattr(module, "START_SECONDS", 90.0)
    monkeypatch.setattr(module, "ASK_SECONDS", 90.0)
    named = {"metadata": {"name": "train"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", **named}
    api, said = kubectl(tmp_path, FORBIDS), list[str]()
    manifest = Manifest(job, ({"apiVersion": "v1", "kind": "Service", **named},))
    training = TrainingObject(api, manifest, "a", said.append)
    assert training.create(job).uid == "u"
    assert said == [
        "Service train is not created, and must be there already: the API server answers 403: services is forbidden"
    ]
    training.create(job)
    assert len(said) == 1
    api.close()
