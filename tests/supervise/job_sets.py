"""What JobSet's controller does for one JobSet, as far as a supervisor sees it: jobs of its own, suspended with it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from tachograph.servers.http_client import HttpError
from tests.supervise.kubelet import call

GROUP, VERSION = "jobset.x-k8s.io", "v1alpha2"
DEFINITION: Mapping[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": f"jobsets.{GROUP}"},
    "spec": {
        "group": GROUP, "scope": "Namespaced", "names": {"plural": "jobsets", "singular": "jobset", "kind": "JobSet"},
        "versions": [{
            "name": VERSION, "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip
MERGE = "application/merge-patch+json"
POLL_SECONDS = 0.3


class JobSets:
    """The controller of a namespace, in a thread, as a context manager; `api` is the socket of `kubectl proxy`."""

    def __init__(self, api: str, namespace: str) -> None:
        self._api = api
        self.sets = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/jobsets"
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> JobSets:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def suspend(self, name: str, *, to: bool) -> None:
        """Suspend a JobSet, or let it run, as Kueue does."""
        call(self._api, f"{self.sets}/{name}", "PATCH", {"spec": {"suspend": to}}, MERGE)

    def _run(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            try:
                for one in (call(self._api, self.sets) or {"items": []})["items"]:
                    if "deletionTimestamp" not in one["metadata"]:
                        self._keep(one)
            except HttpError:  # the API server is away
                pass

    def _keep(self, one: Mapping[str, Any]) -> None:
        (replicated,) = one["spec"]["replicatedJobs"]
        name = f"{one['metadata']['name']}-{replicated['name']}-0"
        job = call(self._api, f"{self._jobs}/{name}")
        if one["spec"].get("suspend"):
            if job is not None and "deletionTimestamp" not in job["metadata"]:
                call(self._api, f"{self._jobs}/{name}", "DELETE", {"propagationPolicy": "Foreground"})
            return
        if job is None:
            owner = {
                "apiVersion": one["apiVersion"], "kind": one["kind"], "name": one["metadata"]["name"],
                "uid": one["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True,
            }  # fmt: skip
            made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "ownerReferences": [owner]}}
            call(self._api, self._jobs, "POST", {**made, "spec": replicated["template"]["spec"]})
            return
        ended = {each["type"] for each in job.get("status", {}).get("conditions", ()) if each["status"] == "True"}
        for of_job, of_set in (("Complete", "Completed"), ("Failed", "Failed")):
            if of_job in ended:
                condition = {"type": of_set, "status": "True", "reason": "Jobs", "message": name}
                place = f"{self.sets}/{one['metadata']['name']}/status"
                call(self._api, place, "PATCH", {"status": {"conditions": [condition]}}, MERGE)
