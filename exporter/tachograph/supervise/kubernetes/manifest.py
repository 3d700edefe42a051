"""The file with the object that trains, and what is made of it for each attempt.

Each attempt has the same name, so that the names of its pods' services and its place in a queue stay. All its pods are
marked with a label, and get the plan of the attempt as variables; none may run on a node that is left out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tachograph.client.hello.batch_job import JOB_ID_ENVIRONMENT
from tachograph.supervise.plan import FILE_ENVIRONMENT
from tachograph.text.humanize import listed

MARK = "tachograph/attempt"
"""The label of an attempt's object and pods, and the annotation with the name of its run."""
RUN = "tachograph/run"
HOSTNAME = "kubernetes.io/hostname"

KINDS: Mapping[str, Collection[str]] = {
    "batch": ("Job",),
    "jobset.x-k8s.io": ("JobSet",),
    "kubeflow.org": ("PyTorchJob", "MPIJob", "JAXJob", "TFJob", "XGBoostJob", "PaddleJob"),
}
"""API group -> kinds of which it is known how they say that they have ended (`state.py`)."""

MOST_BYTES = 1 << 20
"""Of a file: etcd takes no larger object."""

Object = dict[str, Any]


class ManifestError(Exception):
    """A file that no run can be started from; the text says why."""


@dataclass(frozen=True)
class Manifest:
    """The object that trains, and those that it needs beside, such as a Service."""

    training: Object
    others: tuple[Object, ...]

    @property
    def name(self) -> str:
        """Return the kind and the name of the object that trains."""
        return f"{self.training['kind']} {self.training['metadata']['name']}"


def read(path: Path) -> Manifest:
    """Return what a file holds; raise ManifestError."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ManifestError(f"{path} has more than {MOST_BYTES >> 20} MiB")
        documents = [one for one in yaml.load_all(text, yaml.CSafeLoader) if one is not None]
        documents = json.loads(json.dumps(documents, default=str))  # a date without quotes is a text
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ManifestError(f"{path} is not YAML or JSON: {' '.join(str(error).split())[:200]}") from error
    try:
        return of_objects(list(_objects(documents)))
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from error


def _objects(documents: Sequence[Any]) -> Iterator[Object]:
    """Yield the objects of some documents, those of lists one by one; raise ManifestError."""
    for one in documents:
        if isinstance(one, dict) and one.get("kind") == "List" and isinstance(one.get("items"), list):
            yield from _objects(one["items"])
            continue
        metadata = one.get("metadata") if isinstance(one, dict) else None
        if not isinstance(metadata, dict) or not all(_is_text(one.get(key)) for key in ("apiVersion", "kind")):
            raise ManifestError("it has something without apiVersion, kind and metadata")
        if "generateName" in metadata or not _is_text(metadata.get("name")):
            raise ManifestError(
                f"a {one['kind']} has no name of its own: every attempt must have the same (metadata.name)"
            )
        yield one


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def of_objects(objects: Sequence[Object]) -> Manifest:
    """Return which of these objects trains; raise ManifestError."""
    training = [one for one in objects if _is_training(one)]
    running = [one for one in objects if one not in training and (one["kind"] == "Pod" or list(_templates(one)))]
    if running:
        names = listed([f"{one['kind']} {one['metadata']['name']}" for one in running])
        kinds = listed(sorted(kind for kinds in KINDS.values() for kind in kinds))
        raise ManifestError(f"{names} has pods, and when it has ended is not known: one of these is ({kinds})")
    if len(training) != 1:
        names = listed([f"{one['kind']} {one['metadata']['name']}" for one in training])
        raise ManifestError(f"expected one object that trains, and found {names or 'none'}")
    if not list(_templates(training[0])):
        raise ManifestError(f"{training[0]['kind']} {training[0]['metadata']['name']} has no template of a pod")
    return Manifest(training[0], tuple(one for one in objects if one is not training[0]))


def _is_training(one: Object) -> bool:
    group = one["apiVersion"].rpartition("/")[0]
    return one["kind"] in KINDS.get(group, ())


def _templates(value: Any, depth: int = 12) -> Iterator[Object]:  # noqa: ANN401 - whatever JSON can say
    """Yield the templates of pods within an object: what has a spec with containers."""
    if depth == 0:
        return
    if isinstance(value, list):
        for each in value:
            yield from _templates(each, depth - 1)
    elif isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list) and spec["containers"]:
            yield value
            return
        for each in value.values():
            yield from _templates(each, depth - 1)


def rendered(
    manifest: Manifest, run: str, mark: str, environment: Mapping[str, str], left_out: Collection[str]
) -> Object:
    """Return the object of an attempt; raise ManifestError where it is not of the form that Kubernetes takes."""
    made = copy.deepcopy(manifest.training)
    try:
        metadata = made["metadata"]
        metadata["labels"] = {**(metadata.get("labels") or {}), MARK: mark}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), RUN: run}
        # The file of the plan is on the supervisor's own disk.
        given = {
            **{name: text for name, text in environment.items() if name != FILE_ENVIRONMENT},
            JOB_ID_ENVIRONMENT: mark,
        }
        for template in _templates(made):
            own = template.get("metadata") or {}
            template["metadata"] = {**own, "labels": {**(own.get("labels") or {}), MARK: mark}}
            for container in (*template["spec"]["containers"], *(template["spec"].get("initContainers") or ())):
                container["env"] = _with(container.get("env") or (), given)
            if left_out:
                _leave_out(template["spec"], sorted(left_out))
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise ManifestError(f"{manifest.name} is not of the form that Kubernetes takes: {error}") from error
    return made


def _with(env: Sequence[Object], given: Mapping[str, str]) -> list[Object]:
    """Return a container's variables with these before the others, which may refer to them.

    A dollar is doubled: Kubernetes would put another variable in the place of `$(NAME)`.
    """
    ours = [{"name": name, "value": text.replace("$", "$$")} for name, text in given.items()]
    return [*ours, *(one for one in env if one.get("name") not in given)]


def _leave_out(spec: Object, nodes: Sequence[str]) -> None:
    """Add to a pod's affinity that it runs on none of these nodes: to each of the terms, one of which must hold."""
    affinity = spec["affinity"] = {**(spec.get("affinity") or {})}
    of_nodes = affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {})}
    required = {**(of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {})}
    of_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = required
    away = {"key": HOSTNAME, "operator": "NotIn", "values": list(nodes)}
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), away]} for term in terms
    ]
