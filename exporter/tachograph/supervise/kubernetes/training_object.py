"""The object that trains, where the API server has it, with its pods and what it needs beside."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar
from urllib.parse import quote

from tachograph.files.unreadable import UNREADABLE
from tachograph.supervise.kubernetes.api import CONFLICT, FORBIDDEN, ApiError, KubernetesApi
from tachograph.supervise.kubernetes.manifest import MARK, Manifest
from tachograph.supervise.kubernetes.state import ObjectSeen, PodSeen, object_seen, pods_seen

T = TypeVar("T")


class TrainingObject:
    """One name of a kind in a namespace; its path is asked for once."""

    def __init__(self, api: KubernetesApi, manifest: Manifest, namespace: str, say: Callable[[str], None]) -> None:
        self._api, self.manifest, self.namespace, self._say = api, manifest, namespace, say
        self._are_others_there = False
        self._collection = ""

    @property
    def name(self) -> str:
        """Return the kind and the name."""
        return self.manifest.name

    def get(self) -> ObjectSeen | None:
        """Return what it says now, None if there is none; raise ApiError."""
        said = self._api.get(self._path())
        return None if said is None else _read(object_seen, said)

    def create(self, made: dict[str, Any]) -> ObjectSeen:
        """Create it, and first what it needs beside, unless that is there; raise ApiError."""
        for other in () if self._are_others_there else self.manifest.others:
            self._create_beside(other)
        self._are_others_there = True
        return _read(object_seen, self._api.create(self._made_in(), made))

    def _create_beside(self, other: dict[str, Any]) -> None:
        namespace = other["metadata"].get("namespace") or self.namespace
        try:
            self._api.create(self._api.collection(other["apiVersion"], other["kind"], namespace), other)
        except ApiError as error:
            name = f"{other['kind']} {other['metadata']['name']}"
            if error.status == FORBIDDEN:  # also if it is there
                self._say(f"{name} is not created, and must be there already: {error}")
            elif error.status != CONFLICT:  # it is there
                raise ApiError(f"{name}: {error}", error.status) from error

    def delete(self, uid: str) -> None:
        """Have it deleted once all of its pods are gone; raise ApiError."""
        self._api.delete(self._path(), uid)

    def pods(self, marks: Collection[str]) -> tuple[PodSeen, ...]:
        """Return the pods of the attempts that have these marks; raise ApiError."""
        selector = quote(f"{MARK} in ({','.join(sorted(marks))})", safe="")
        path = f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods?labelSelector={selector}"
        return _read(pods_seen, self._api.get(path) or {})

    def _path(self) -> str:
        return f"{self._made_in()}/{quote(self.manifest.training['metadata']['name'], safe='')}"

    def _made_in(self) -> str:
        if not self._collection:
            training = self.manifest.training
            self._collection = self._api.collection(training["apiVersion"], training["kind"], self.namespace)
        return self._collection


def _read(form: Callable[[dict[str, Any]], T], said: dict[str, Any]) -> T:
    """Return what an answer says; raise ApiError for one of another form."""
    try:
        return form(said)
    except UNREADABLE as error:
        raise ApiError(f"the API server answers with something else than was asked for: {error!r}"[:200]) from error
