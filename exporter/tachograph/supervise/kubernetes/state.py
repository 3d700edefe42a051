"""The object that trains and its pods, as the JSON of the API server has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tachograph.supervise.kubernetes.manifest import MARK
from tachograph.text.printable import printable

COMPLETE, FAILED = ("Complete", "Completed", "Succeeded"), ("Failed",)
"""Conditions by which a Job, a JobSet and Kubeflow's jobs say that they have ended."""
_LOST = ("DeletionByTaintManager", "DeletionByPodGC")
LONGEST_TEXT = 300

Said = Mapping[str, Any]


@dataclass(frozen=True)
class ObjectSeen:
    """The object that trains: `status` is 0 or 1 once it has ended, and `why` what it says of that."""

    uid: str
    mark: str
    version: str
    status: int | None
    why: str
    is_suspended: bool
    is_being_deleted: bool


@dataclass(frozen=True)
class PodSeen:
    """A pod: the node that it is on, and its address, empty while it has none; `waits` says for what it waits.

    `is_lost` says that its node does not answer Kubernetes, or is gone.
    """

    name: str
    node: str
    address: str
    phase: str
    waits: str
    is_being_deleted: bool
    is_lost: bool


def object_seen(said: Said) -> ObjectSeen:
    """Return what an object says; raise one of UNREADABLE for what is none."""
    metadata, spec, status = said["metadata"], said.get("spec") or {}, said.get("status") or {}
    ended, why = None, ""
    for one in status.get("conditions") or ():
        if one.get("status") == "True" and one.get("type") in (*COMPLETE, *FAILED):
            ended = int(one["type"] in FAILED)
            why = _text(": ".join(filter(None, (one.get("reason"), one.get("message")))))
    policy = spec.get("runPolicy") or {}
    return ObjectSeen(
        uid=str(metadata["uid"]),
        mark=str((metadata.get("labels") or {}).get(MARK, "")),
        version=str(metadata.get("resourceVersion", "")),
        status=ended,
        why=why,
        is_suspended=spec.get("suspend") is True or policy.get("suspend") is True,
        is_being_deleted="deletionTimestamp" in metadata,
    )


def pods_seen(said: Said) -> tuple[PodSeen, ...]:
    """Return the pods of a list; raise one of UNREADABLE for what is none."""
    return tuple(_pod(one) for one in said["items"])


def _pod(said: Said) -> PodSeen:
    metadata, spec, status = said["metadata"], said.get("spec") or {}, said.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    disrupted = conditions.get("DisruptionTarget") or {}
    is_lost = status.get("reason") == "NodeLost" or (
        disrupted.get("status") == "True" and disrupted.get("reason") in _LOST
    )
    return PodSeen(
        name=str(metadata["name"]),
        node=str(spec.get("nodeName") or ""),
        address=str(status.get("hostIP") or ""),
        phase=str(status.get("phase") or ""),
        waits=_waits(status, conditions),
        is_being_deleted="deletionTimestamp" in metadata,
        is_lost=is_lost,
    )


def _waits(status: Said, conditions: Mapping[str, Said]) -> str:
    """Return why a pod does not run yet: it has no node, or its container cannot be started."""
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return _text(scheduled.get("message") or scheduled.get("reason"))
    return next(iter(_waiting(status.get("containerStatuses") or ())), "")


def _waiting(containers: Iterable[Said]) -> Iterable[str]:
    for one in containers:
        if waiting := (one.get("state") or {}).get("waiting"):
            yield _text(": ".join(filter(None, (waiting.get("reason"), waiting.get("message")))))


def _text(value: object) -> str:
    return printable(str(value or ""))[:LONGEST_TEXT]
