"""`python kubelet.py SOCKET FOLDER NODE …` does for pods on these nodes what kubelets do, without containers.

It runs the command of a pod's first container as a process with the pod's variables, says how it is, and ends it when
the pod is deleted. A file `lost-NODE` in the folder has the node vanish: nothing is done or said there any more.
`kubectl proxy` listens at the socket.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tachograph.servers.http_client import HttpError, ask

POLL_SECONDS = 0.25


def call(socket: str, path: str, method: str = "GET", body: Any = None, kind: str = "application/json") -> Any:
    """Return what the API server answers, None if the object is not there; raise HttpError."""
    sent = None if body is None else json.dumps(body).encode()
    answer = ask(f"unix://{quote(socket, safe='')}{path}", 20.0, method=method, body=sent, kind=kind if sent else "")
    if answer.status in (404, 409):
        return None
    if answer.status >= 300:
        raise HttpError(f"{method} {path}: {answer.status} {answer.body[:300]!r}")
    return json.loads(answer.body)


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Return a value as Kubernetes expands it: `$(NAME)` is a variable before it, `$$` a dollar."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda one: "$" if one[1] is None else known.get(one[1], one[0]), text)


def environment(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container."""
    fields = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "spec.nodeName": pod["spec"]["nodeName"],
    }
    found: dict[str, str] = {"HOSTNAME": pod["metadata"]["name"], "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    for one in container.get("env", ()):
        path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[one["name"]] = fields[path] if path else expanded(one.get("value", ""), found)
    return found


@dataclass
class Running:
    """A pod whose process was started; `asked` is when it was asked to end."""

    pod: Mapping[str, Any]
    process: subprocess.Popen[bytes]
    asked: float = 0.0
    is_said: bool = False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)


class Kubelets:
    """The kubelets of some nodes."""

    def __init__(self, socket: str, folder: Path, nodes: Sequence[str]) -> None:
        self._socket, self._folder, self._nodes = socket, folder, nodes
        self._running: dict[str, Running] = {}

    def look(self) -> None:
        """Do what is to be done on all nodes; raise HttpError."""
        there = call(self._socket, "/api/v1/pods")["items"]
        for pod in there:
            node = pod["spec"].get("nodeName")
            if node in self._nodes and not (self._folder / f"lost-{node}").exists():
                self._keep(pod)
        uids = {pod["metadata"]["uid"] for pod in there}
        for uid in self._running.keys() - uids:  # it was deleted by force
            self._running.pop(uid).signal(signal.SIGKILL)

    def _keep(self, pod: Mapping[str, Any]) -> None:
        uid, meta = pod["metadata"]["uid"], pod["metadata"]
        one = self._running.get(uid)
        if "deletionTimestamp" in meta:
            if one is None or self._has_ended(one, meta.get("deletionGracePeriodSeconds", 30)):
                self._running.pop(uid, None)
                body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                call(self._socket, self._path(pod), "DELETE", body)
            return
        if one is None and pod["status"]["phase"] == "Pending":
            self._running[uid] = self._start(pod)
            self._say(pod, "Running", {"running": {"startedAt": _now()}})
        elif one is not None and one.process.poll() is not None and not one.is_said:
            one.is_said = True
            status = one.process.returncode
            code = status if status >= 0 else 128 - status
            self._say(pod, "Failed" if code else "Succeeded", {"terminated": {"exitCode": code}})

    def _has_ended(self, one: Running, grace: float) -> bool:
        """Return whether a pod's process has ended, which is asked to, and later made to."""
        if not one.asked:
            one.asked = time.monotonic()
            one.signal(signal.SIGTERM)
            one.signal(signal.SIGCONT)
        if time.monotonic() - one.asked > grace:
            one.signal(signal.SIGKILL)
        return one.process.poll() is not None

    def _start(self, pod: Mapping[str, Any]) -> Running:
        container, node = pod["spec"]["containers"][0], pod["spec"]["nodeName"]
        given = environment(pod, container)
        own = {**os.environ, **given, "TACHOGRAPH_SOCKET": str(self._folder / f"{node}.sock")}
        words = [expanded(word, given) for word in (*container["command"], *container.get("args", ()))]
        with (self._folder / f"pod-{pod['metadata']['name']}.log").open("wb") as log:
            return Running(pod, subprocess.Popen(words, env=own, stdout=log, stderr=log, start_new_session=True))

    def _path(self, pod: Mapping[str, Any]) -> str:
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    def _say(self, pod: Mapping[str, Any], phase: str, state: Mapping[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        said = {
            "name": container["name"], "image": container["image"], "imageID": "", "ready": phase == "Running",
            "restartCount": 0, "state": state,
        }  # fmt: skip
        status = {"phase": phase, "hostIP": "127.0.0.1", "podIP": "127.0.0.1", "containerStatuses": [said]}
        call(self._socket, f"{self._path(pod)}/status", "PATCH", {"status": status}, "application/merge-patch+json")

    def close(self) -> None:
        """End all that was started."""
        for one in self._running.values():
            one.signal(signal.SIGKILL)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> None:
    socket, folder, *nodes = sys.argv[1:]
    kubelets = Kubelets(socket, Path(folder), nodes)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        while True:
            try:
                kubelets.look()
            except HttpError as error:
                print(error, flush=True)
            time.sleep(POLL_SECONDS)
    finally:
        kubelets.close()


if __name__ == "__main__":
    main()
