"""The API server, asked through `kubectl proxy`, a child with a socket in a private folder.

Whoever may use kubectl may use this, with whichever credentials and certificates that has; to start it for each
question would cost 50 ms and more.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tachograph.files.unreadable import UNREADABLE
from tachograph.processes.die_with_parent import dying_with_parent
from tachograph.servers.http_client import HttpError, HttpResponse, KeptPage, ask
from tachograph.text.printable import printable

ASK_SECONDS = 10.0
START_SECONDS = 10.0
"""How long kubectl may take to listen."""
MOST_BYTES = 64 << 20
LONGEST_TEXT = 300
MOST_PAGES = 8
"""Kept connections: one for the object and one for its pods."""

SOCKET = "api.sock"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_NAMESPACE = "default"

REFUSALS = (400, 403, 404, 405, 409, 413, 415, 422)
"""Statuses by which the API server has answered, whatever it said; another is that of one that cannot, or not now."""
FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refuses, or does not answer, which is `status` 0; the text says why."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Whether it has answered, so that the same would be refused again."""
        return self.status in REFUSALS


class KubernetesApi:
    """The API server that kubectl speaks to with these options; may be used by several threads."""

    def __init__(self, program: str, options: Sequence[str]) -> None:
        self._program, self._options = program, tuple(options)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pages: dict[str, KeptPage] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """End kubectl."""
        with self._lock:
            self._stop()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def get(self, path: str) -> Object | None:
        """Return an object or a list, None if there is none; raise ApiError."""
        with self._lock:
            self._begin()
            if path not in self._pages and len(self._pages) >= MOST_PAGES:
                self._pages.pop(next(iter(self._pages))).close()
            page = self._pages.setdefault(path, KeptPage(self._url(path)))
            try:
                answer = page.ask(ASK_SECONDS, most=MOST_BYTES)
            except HttpError as error:
                raise _silence(error) from error
        return None if answer.status == NOT_FOUND else _object(answer)

    def create(self, path: str, made: Object) -> Object:
        """Create an object in a collection, and return it as it is now; raise ApiError."""
        return self._send("POST", path, made)

    def delete(self, path: str, uid: str) -> None:
        """Have an object deleted once all that it owns is gone; raise ApiError, also if it is another one by now."""
        asked = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        self._send("DELETE", path, {**asked, "preconditions": {"uid": uid}})

    def _send(self, method: str, path: str, body: Object) -> Object:
        with self._lock:
            self._begin()
            try:
                answer = ask(
                    self._url(path), ASK_SECONDS, method=method, body=json.dumps(body).encode(),
                    kind="application/json", most=MOST_BYTES,
                )  # fmt: skip
            except HttpError as error:
                raise _silence(error) from error
        return _object(answer)

    def collection(self, version: str, kind: str, namespace: str) -> str:
        """Return the path of the objects of a kind in a namespace; raise ApiError."""
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        said = self.get(base)
        for one in (said or {}).get("resources") or ():
            if one.get("kind") == kind and "/" not in one.get("name", "/"):
                within = f"/namespaces/{quote(namespace, safe='')}" if one.get("namespaced") else ""
                return f"{base}{within}/{one['name']}"
        raise ApiError(f"the API server knows no {kind} of {version}", NOT_FOUND)

    def namespace(self) -> str:
        """Return the namespace that kubectl uses where none is given: that of its context, or of this pod."""
        words = [self._program, *self._options, "config", "view", "--minify", "--output=jsonpath={..namespace}"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
            own = NAMESPACE_FILE.read_text(encoding="utf-8").strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired):
            return DEFAULT_NAMESPACE
        return (done.stdout.strip() if not done.returncode else own) or DEFAULT_NAMESPACE

    def _url(self, path: str) -> str:
        return f"unix://{quote(f'{self._folder}/{SOCKET}', safe='')}{path}"

    def _begin(self) -> None:
        """Have kubectl listen; raise ApiError."""
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()
        try:
            self._folder = self._folder or Path(tempfile.mkdtemp(prefix="tachograph-"))
            said, path = self._folder / "said", self._folder / SOCKET
            path.unlink(missing_ok=True)
            words = [self._program, *self._options, "proxy", f"--unix-socket={path}"]
            with said.open("wb") as to:
                self._process = subprocess.Popen(
                    dying_with_parent(words), stdin=subprocess.DEVNULL, stdout=to, stderr=to, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise ApiError(f"{self._program} proxy: {error.strerror or error}") from error
        deadline = time.monotonic() + START_SECONDS
        while not _listens(path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._stop()
                text = _last_line(said)
                raise ApiError(f"{self._program} proxy does not listen: {text or 'it says nothing'}")
            time.sleep(0.02)

    def _stop(self) -> None:
        for page in self._pages.values():
            page.close()
        self._pages.clear()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _listens(path: Path) -> bool:
    """Return whether somebody takes connections at a socket, which is in its folder a moment before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _silence(error: HttpError) -> ApiError:
    return ApiError(f"the API server does not answer: {error}")


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return printable(lines[-1])[:LONGEST_TEXT] if lines else ""


def _object(answer: HttpResponse) -> Object:
    """Return what an answer holds; raise ApiError."""
    try:
        said = json.loads(answer.body)
        if not isinstance(said, dict):
            raise TypeError("it is no object")
    except UNREADABLE as error:
        text = printable(answer.body[:LONGEST_TEXT].decode(errors="replace").strip())
        status = answer.status if answer.status != 200 else 0
        raise ApiError(f"the API server answers {answer.status}: {text}", status) from error
    if answer.status >= 300:
        text = printable(str(said.get("message") or answer.reason))[:LONGEST_TEXT]
        raise ApiError(f"the API server answers {answer.status}: {text}", answer.status)
    return said
