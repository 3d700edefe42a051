"""A real control plane of Kubernetes, with RBAC, for some nodes that are all this machine, each with an exporter.

etcd, the API server, the scheduler and the controllers of jobs and of garbage are Kubernetes' own; `kubelet.py` stands
for the kubelets.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tachograph.servers.http_client import HttpError
from tachograph_lab.processes import Child, Children, ProcessError, free_port
from tests.supervise.conftest import LAUNCHER, until
from tests.supervise.job_sets import MERGE
from tests.supervise.journals import Journalled
from tests.supervise.kubelet import call

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
NODES = ("n1", "n2", "n3")
NAMESPACE = "training"
ACCOUNT = "tachograph-supervise"
SUPERVISOR = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [SUPERVISOR]}, {"level": "None"}],
}  # fmt: skip
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
RBAC = "rbac.authorization.k8s.io"
CONTROLLERS = "job,garbagecollector,serviceaccount,serviceaccount-token,namespace,pvc-protection"


class Cluster:
    """The programs, in a folder; `admin` is the socket of a `kubectl proxy` that may do everything."""

    def __init__(self, folder: Path, children: Children, programs: Mapping[str, Path]) -> None:
        self.folder, self._children, self._programs = folder, children, programs
        self._port = free_port()
        self.admin = str(folder / "admin.sock")
        self._keys()
        store = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
        client, peer = (f"--{name}" for name in ("listen-client-urls", "listen-peer-urls"))
        self._start(
            "etcd", lambda: True, f"--data-dir={folder / 'etcd'}", f"{client}={store[0]}", f"{peer}={store[1]}",
            f"--advertise-client-urls={store[0]}", f"--initial-advertise-peer-urls={store[1]}",
            f"--initial-cluster=default={store[1]}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._server_flags = [
            f"--etcd-servers={store[0]}", f"--secure-port={self._port}", "--bind-address=127.0.0.1",
            f"--cert-dir={folder / 'pki'}", "--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens'}", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder / 'sa.key'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--endpoint-reconciler-type=none",
            f"--audit-log-path={folder / 'audit.log'}", f"--audit-policy-file={folder / 'audit.yml'}",
        ]  # fmt: skip
        self.server = self.start_server()
        flags = [f"--kubeconfig={folder / 'admin.conf'}", "--leader-elect=false"]
        ports = [f"--secure-port={free_port()}", "--port=0", f"--cert-dir={folder / 'pki'}", "--bind-address=127.0.0.1"]
        self._children.start("proxy", ["kubectl", *flags[:1], "proxy", f"--unix-socket={self.admin}"])
        until(lambda: self.works(f"/apis/{RBAC}/v1/clusterroles/system:basic-user"), 180)  # of the last hook
        self._start_controllers(
            *flags, *ports, f"--controllers={CONTROLLERS}", f"--service-account-private-key-file={folder / 'sa.key'}",
            "--use-service-account-credentials=false",
        )  # fmt: skip
        self._start("kube-scheduler", lambda: True, *flags, f"--secure-port={free_port()}", *ports[1:])
        for node in NODES:
            self._add_node(node)
        self.apply(ROOT / "deploy/kubernetes/supervise.yaml")
        self.supervisor_conf()
        self._children.start("kubelet", [sys.executable, str(HERE / "kubelet.py"), self.admin, str(folder), *NODES])

    def _keys(self) -> None:
        """Write keys, tokens, and the file by which the administrator finds the server."""
        (self.folder / "pki").mkdir()
        key = self.folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (self.folder / "tokens").write_text('admin,admin,1,"system:masters"\n')
        (self.folder / "audit.yml").write_text(yaml.safe_dump(AUDIT))
        self.write_conf("admin.conf", "admin")

    def write_conf(self, name: str, token: str) -> Path:
        """Write a kubeconfig for a user with a token."""
        path = self.folder / name
        cluster = {"server": f"https://127.0.0.1:{self._port}", "insecure-skip-tls-verify": True}
        context = {"cluster": "c", "user": "u", "namespace": NAMESPACE}
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}], "contexts": [{"name": "c", "context": context}],
            "users": [{"name": "u", "user": {"token": token}}],
        }))  # fmt: skip
        return path

    def _start(self, name: str, ready: Callable[[], bool], *flags: str) -> Child:
        child = self._children.start(name, [self._programs[name], *flags])
        child.wait_until(ready, 90.0)
        return child

    def _start_controllers(self, *flags: str) -> None:
        """Start the controllers, once more where the API server was too slow for them to begin."""
        default = "/api/v1/namespaces/default/serviceaccounts/default"
        for is_last in (False, False, True):
            try:
                self._start("kube-controller-manager", lambda: self.works(default), *flags)
                return
            except ProcessError:
                if is_last:
                    raise

    def start_server(self) -> Child:
        """Start the API server."""
        return self._start("kube-apiserver", lambda: True, *self._server_flags)

    def works(self, path: str) -> bool:
        """Return whether the API server answers."""
        try:
            return call(self.admin, path) is not None
        except HttpError:
            return False

    def _add_node(self, name: str) -> None:
        labels = {"kubernetes.io/hostname": name}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        call(self.admin, "/api/v1/nodes", "POST", node)
        size = {"cpu": "1", "memory": "1Gi", "pods": "10"}
        ready = [{"type": "Ready", "status": "True", "reason": "Tested"}]
        status = {"status": {"capacity": size, "allocatable": size, "conditions": ready}}
        call(self.admin, f"/api/v1/nodes/{name}/status", "PATCH", status, "application/merge-patch+json")
        web = self.folder / f"{name}.web.sock"
        flags = (f"--socket={self.folder / name}.sock", "--web.listen-address=127.0.0.1:0", "--gpu.kmsg=")
        exporter = self._children.start(
            f"exporter-{name}", [sys.executable, str(ROOT / "tests/quick_exporter.py"), *flags]
        )
        exporter.wait_until(web.exists, 90.0)

    def apply(self, path: Path) -> None:
        """Create the namespace, and what gives the supervisor its rights."""
        call(self.admin, "/api/v1/namespaces", "POST", {"kind": "Namespace", "metadata": {"name": NAMESPACE}})
        rbac = f"/apis/{RBAC}/v1/namespaces/{NAMESPACE}"
        places = {
            "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
            "Role": f"{rbac}/roles", "RoleBinding": f"{rbac}/rolebindings",
        }  # fmt: skip
        for one in yaml.safe_load_all(path.read_text()):
            if one["kind"] in places:
                assert call(self.admin, places[one["kind"]], "POST", one) is not None

    def grant(self, name: str, rule: Mapping[str, Any]) -> None:
        """Give the supervisor's account another right."""
        rbac = f"/apis/{RBAC}/v1/namespaces/{NAMESPACE}"
        call(self.admin, f"{rbac}/roles", "POST", {"metadata": {"name": name}, "rules": [rule]})
        binding = {
            "metadata": {"name": name}, "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        }  # fmt: skip
        call(self.admin, f"{rbac}/rolebindings", "POST", binding)

    def supervisor_conf(self) -> Path:
        """Return the kubeconfig with the token of the supervisor's service account, which a controller makes."""
        import base64

        def token() -> str | None:
            secrets = call(self.admin, f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
            name = "kubernetes.io/service-account.name"
            own = [one for one in secrets if one["metadata"].get("annotations", {}).get(name) == ACCOUNT]
            return base64.b64decode(own[0]["data"]["token"]).decode() if own else None

        return self.write_conf("supervisor.conf", until(token, 180))

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the namespace."""
        return list(call(self.admin, f"/api/v1/namespaces/{NAMESPACE}/pods")["items"])

    def clear(self) -> None:
        """End what a test has left."""
        for node in NODES:
            (self.folder / f"lost-{node}").unlink(missing_ok=True)
            self.cordon(node, to=False)
        for one in call(self.admin, JOBS)["items"]:
            self.delete_job(one["metadata"]["name"])
        until(lambda: not call(self.admin, JOBS)["items"] and not self.pods())

    def cordon(self, node: str, *, to: bool) -> None:
        """Have no pod put on a node, or again."""
        call(self.admin, f"/api/v1/nodes/{node}", "PATCH", {"spec": {"unschedulable": to}}, MERGE)

    def delete_job(self, name: str) -> None:
        """Delete a Job and its pods, as a person does."""
        call(self.admin, f"{JOBS}/{name}", "DELETE", {"propagationPolicy": "Foreground"})

    def stop_server(self) -> None:
        """End the API server."""
        self._children.end("kube-apiserver")

    def audited(self) -> set[tuple[str, str, str]]:
        """Return what the supervisor has been allowed: group, kind of objects and verb; discovery is everybody's."""
        said = [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]
        allowed = [one for one in said if one["annotations"]["authorization.k8s.io/decision"] == "allow"]
        of_objects = [(one, one["objectRef"]) for one in allowed if "objectRef" in one]
        return {(of.get("apiGroup", ""), of["resource"], one["verb"]) for one, of in of_objects}


@dataclass
class Run(Journalled):
    """A training of one rank a pod, and its supervisors."""

    cluster: Cluster
    name: str
    folder: Path
    ranks: int = 2
    job: dict[str, Any] = field(default_factory=dict)
    others: list[dict[str, Any]] = field(default_factory=list)
    """What its manifest has beside it."""
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fields = {"NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
        env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
        rank = [sys.executable, "-W", "ignore", str(HERE / "pod_rank.py"), str(self.folder), str(self.ranks)]
        container = {
            "name": "train", "image": "train", "command": rank, "env": env, "resources": {"requests": {"cpu": "1"}},
        }  # fmt: skip
        template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container]}}
        self.job = {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": self.name},
            "spec": {"parallelism": self.ranks, "completions": self.ranks, "backoffLimit": 0, "template": template},
        }  # fmt: skip

    @property
    def file(self) -> Path:
        """The manifest."""
        return self.folder / "train.yaml"

    def command(
        self, *options: str, mode: str = "act", program: Sequence[str] = ("tachograph",), state: Path | None = None
    ) -> list[str]:
        """Return the command that supervises it."""
        self.file.write_text(yaml.safe_dump_all([self.job, *self.others]))
        return [
            sys.executable, "-W", "ignore", "-m", *program, "supervise", "--run", self.name, "--mode", mode,
            "--state", str(state or self.state),
            "--exporter", f"unix:{self.cluster.folder}/{{node}}.web.sock", *options, "--", "kubectl",
            f"--kubeconfig={self.cluster.folder / 'supervisor.conf'}", "create", "-f", str(self.file),
        ]  # fmt: skip

    def start(
        self, *options: str, mode: str = "act", program: Sequence[str] = ("tachograph",), state: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a supervisor; its words are in a file."""
        mine = {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHER)}
        mine["TACHOGRAPH_SOCKET"] = str(self.folder / "none.sock")
        with (self.folder / "said").open("a") as said:
            words = self.command(*options, mode=mode, program=program, state=state)
            process = subprocess.Popen(words, cwd=ROOT, env=mine, stdout=said, stderr=said, text=True)
        self.processes.append(process)
        return process

    def said(self) -> str:
        """What its supervisors said."""
        return (self.folder / "said").read_text()

    def plans(self, attempt: int) -> list[dict[str, Any]]:
        """What the ranks of an attempt left, by rank."""
        path = self.folder / "plans"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return sorted((one for one in found if one["attempt"] == attempt), key=lambda one: int(one["rank"]))

    def began(self, attempt: int, steps: int = 30) -> list[dict[str, Any]]:
        """Wait until all ranks of an attempt have made so many steps, 20 a second; return what they left."""
        found = list(until(lambda: len(now := self.plans(attempt)) == self.ranks and now))
        begin = [self._steps(rank) for rank in range(self.ranks)]
        until(lambda: all(self._steps(rank) >= begin[rank] + steps for rank in range(self.ranks)))
        return found

    def _steps(self, rank: int) -> int:
        saved = self.folder / f"saved-{rank}"
        return int(saved.read_text()) if saved.exists() else 0

    def goes_on(self, steps: int = 30) -> None:
        """Wait until all ranks have made so many more steps."""
        begin = [self._steps(rank) for rank in range(self.ranks)]
        until(lambda: all(self._steps(rank) >= begin[rank] + steps for rank in range(self.ranks)))

    def strike(self, node: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Have the rank on a node send itself a signal."""
        asked = self.folder / f"{number.name}-{node}"
        asked.touch()
        until(lambda: not asked.exists())

    def awaits(self, what: str, seconds: float = 200.0) -> None:
        """Wait until a supervisor has said something; what it does not know it says after 2 minutes."""
        until(lambda: what in self.said(), seconds)

    def object(self) -> dict[str, Any] | None:
        """Return its Job as it is, None if there is none."""
        found = call(self.cluster.admin, f"{JOBS}/{self.name}")
        return None if found is None else dict(found)

    def kinds(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the entries of a kind."""
        return [one for one in self.entries() if one["kind"] == kind]

    def finish(self, supervisor: subprocess.Popen[str]) -> None:
        """Have all ranks end well, and their supervisor with them."""
        (self.folder / "finish").touch()
        assert supervisor.wait(90) == 0, self.said()
        assert not (self.folder / "twice").exists()

    def close(self) -> None:
        """End its supervisors."""
        for one in self.processes:
            one.kill()
            one.wait()
