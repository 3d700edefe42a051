"""A Kubernetes API for Helm: it keeps objects, and knows what cannot change; nothing is run or scheduled."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Mapping
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

KINDS: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "v1": {
        "secrets": ("Secret", True),
        "configmaps": ("ConfigMap", True),
        "services": ("Service", True),
        "serviceaccounts": ("ServiceAccount", True),
        "namespaces": ("Namespace", False),
    },
    "apps/v1": {"daemonsets": ("DaemonSet", True)},
    "networking.k8s.io/v1": {"networkpolicies": ("NetworkPolicy", True)},
    "rbac.authorization.k8s.io/v1": {"roles": ("Role", True), "rolebindings": ("RoleBinding", True)},
    "monitoring.coreos.com/v1": {"podmonitors": ("PodMonitor", True), "prometheusrules": ("PrometheusRule", True)},
    "monitoring.coreos.com/v1alpha1": {"alertmanagerconfigs": ("AlertmanagerConfig", True)},
    "security.openshift.io/v1": {"securitycontextconstraints": ("SecurityContextConstraints", False)},
}
"""The kinds of a version, and whether they are in a namespace, by the name in URLs."""

PATH = re.compile(
    r"/(?:api|apis)/(?P<version>v1|[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?"
)
PROTOBUF = b"k8s\0"
"""How a request begins that is not JSON."""

Place = tuple[str, str, str, str]
"""Version, plural, namespace and name of an object."""

IMMUTABLE: Mapping[str, tuple[str, ...]] = {"DaemonSet": ("spec", "selector"), "RoleBinding": ("roleRef",)}
"""The field of a kind that no update may change."""


class KubernetesApi:
    """The server, as a context manager, and the objects that it keeps by place."""

    def __init__(self) -> None:
        self.objects: dict[Place, dict[str, Any]] = {}
        self._count = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    def __enter__(self) -> KubernetesApi:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, path: Path) -> Path:
        """Write the file by which a client finds the server; return its path."""
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {}}]
        made = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
        path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **made}))
        return path

    def kept(self) -> set[tuple[str, str]]:
        """Return kind and name of every object but Helm's own records."""
        return {
            (one["kind"], one["metadata"]["name"])
            for one in self.objects.values()
            if one.get("type") != "helm.sh/release.v1"
        }

    def answer(self, method: str, url: str, body: bytes, content_type: str) -> tuple[int, dict[str, Any]]:
        """Return status and body of the answer to a request."""
        path = urlsplit(url).path
        found = PATH.fullmatch(path)
        if path in DISCOVERY:
            return 200, DISCOVERY[path]
        if not found or found["plural"] not in KINDS.get(found["version"], {}):
            return _status(404, "NotFound", path)
        where = (found["version"], found["plural"], found["namespace"] or "", found["name"] or "")
        if found["name"] is None and method == "GET":
            return 200, self._listed(where, parse_qs(urlsplit(url).query).get("labelSelector", [""])[0])
        given = {} if method in ("GET", "DELETE") else _read(body)
        if method == "POST" or (where not in self.objects and "apply-patch" in content_type):
            return self._create((*where[:3], given["metadata"]["name"]), given)
        if where not in self.objects:
            return _status(404, "NotFound", path)
        whole = method == "PUT" or "apply-patch" in content_type
        return self._change(method, where, given if whole else merged(self.objects[where], given))

    def _listed(self, where: Place, selector: str) -> dict[str, Any]:
        wanted = dict(each.split("=", 1) for each in selector.split(",") if each)
        items = [
            one
            for place, one in sorted(self.objects.items())
            if place[:2] == where[:2]
            and place[2] in (where[2] or place[2])
            and wanted.items() <= one["metadata"].get("labels", {}).items()
        ]
        kind = KINDS[where[0]][where[1]][0]
        return {"kind": f"{kind}List", "apiVersion": where[0], "metadata": {"resourceVersion": "1"}, "items": items}

    def _create(self, where: Place, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if where in self.objects:
            return _status(409, "AlreadyExists", where[3])
        return 201, self._keep(where, given)

    def _change(self, method: str, where: Place, given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if method in ("GET", "DELETE"):
            return 200, self.objects[where] if method == "GET" else self.objects.pop(where)
        fixed = IMMUTABLE.get(given["kind"], ())
        if fixed and _field(given, fixed) != _field(self.objects[where], fixed):
            return _status(422, "Invalid", f"{'.'.join(fixed)}: Invalid value: field is immutable")
        return 200, self._keep(where, given)

    def _keep(self, where: Place, given: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        kept = deepcopy(given)
        kept["metadata"] |= {"uid": f"{where}", "resourceVersion": str(self._count)}
        if where[2]:
            kept["metadata"]["namespace"] = where[2]
        self.objects[where] = kept
        return kept

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536  # one packet an answer: a second would wait for the first to be acknowledged

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with lock:
                    code, answer = api.answer(self.command, self.path, body, self.headers.get("Content-Type", ""))
                    text = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Stay silent."""

        return Handler


def _read(body: bytes) -> dict[str, Any]:
    return _secret(body) if body.startswith(PROTOBUF) else yaml.load(body, yaml.CSafeLoader)


def _secret(body: bytes) -> dict[str, Any]:
    """Return the Secret of a request in Kubernetes' protobuf: Helm keeps its releases so, whatever it is answered."""
    (raw,) = _fields(body[len(PROTOBUF) :])[2]  # of runtime.Unknown
    secret = _fields(raw)
    metadata = _fields(secret[1][0])
    labels = (_fields(each) for each in metadata.get(11, ()))
    data = (_fields(each) for each in secret.get(2, ()))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": metadata[1][0].decode(),
            "labels": {each[1][0].decode(): each[2][0].decode() for each in labels},
        },
        "data": {each[1][0].decode(): base64.b64encode(each[2][0]).decode() for each in data},
        "type": secret[3][0].decode(),
    }


def _fields(message: bytes) -> dict[int, list[bytes]]:
    """Return the fields of a protobuf message that are texts, bytes or messages, by number."""
    found: dict[int, list[bytes]] = {}
    place = 0
    while place < len(message):
        key, place = _number(message, place)
        value, place = _number(message, place)
        if key & 7 == 2:
            found.setdefault(key >> 3, []).append(message[place : place + value])
            place += value
    return found


def _number(message: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place after it."""
    value = shift = 0
    while message[place] & 0x80:
        value |= (message[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return value | message[place] << shift, place + 1


def merged(old: Any, patch: Any) -> Any:
    """Return what a merge patch makes of an object: null removes."""
    if not isinstance(old, dict) or not isinstance(patch, dict):
        return patch
    made = {key: value for key, value in old.items() if key not in patch}
    return made | {key: merged(old.get(key), value) for key, value in patch.items() if value is not None}


def _field(one: Any, path: tuple[str, ...]) -> object:
    for key in path:
        one = one.get(key, {})
    return one


def _groups() -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, str]]] = {}
    for version in KINDS:
        if "/" in version:
            found.setdefault(version.split("/")[0], []).append(
                {"groupVersion": version, "version": version.split("/")[1]}
            )
    return [{"name": name, "versions": each, "preferredVersion": each[0]} for name, each in found.items()]


def _resources(version: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update"]
    resources = [
        {"name": plural, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": verbs}
        for plural, (kind, namespaced) in KINDS[version].items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return code, body


DISCOVERY: Mapping[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": _resources("v1"),
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups()},
    **{f"/apis/{version}": _resources(version) for version in KINDS if "/" in version},
}
"""What a client asks first, by path."""
