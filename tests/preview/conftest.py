"""A real viewer in front of a real Prometheus; it serves the built viewer or three small files instead."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from tachograph.dashboards.bundle import Bundle
from tachograph.dashboards.server import Viewer

ROOT = Path(__file__).resolve().parents[2]


def _of_grafana() -> ModuleType:
    """Return tests/grafana/conftest.py, whose fleet is used here, too."""
    spec = importlib.util.spec_from_file_location("fleet_of_grafana", ROOT / "tests/grafana/conftest.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


fleet = _of_grafana().fleet


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """Run a server; yield its URL."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Three files instead of the built viewer, and the real dashboards."""
    viewer = tmp_path_factory.mktemp("viewer")
    (viewer / "assets").mkdir()
    (viewer / "index.html").write_text("<!doctype html><title>viewer</title>", encoding="utf-8")
    (viewer / "assets" / "boot.js").write_text("boot()", encoding="utf-8")
    (viewer / "assets" / "main.js.gz").write_bytes(b"packed")
    (viewer.parent / "secret").write_text("nobody's business", encoding="utf-8")
    return Bundle(viewer, ROOT / "grafana" / "dashboards")


@pytest.fixture(scope="module")
def view() -> Iterator[Callable[..., str]]:
    """Return the function that serves a bundle with data from a Prometheus and returns the viewer's URL."""
    with ExitStack() as running:

        def served(bundle: Bundle, prometheus: str, names: frozenset[str] = frozenset()) -> str:
            return running.enter_context(serving(Viewer(("127.0.0.1", 0), bundle, prometheus, names)))

        yield served


class Prometheus(BaseHTTPRequestHandler):
    """Responds as a Prometheus of another version, without our rules, or with two runs; it keeps the requests."""

    version = "2.42.0"
    rules: tuple[str, ...] = ("run:ranks:count",)
    runs: tuple[str, ...] = ("llama-7b", "llama-70b")
    now: tuple[str, ...] = runs
    asked: list[tuple[str, str, bytes]]

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, form: bytes) -> None:
        path, _, query = self.path.partition("?")
        self.asked.append((self.command, self.path, form))
        groups = [{"rules": [{"name": name} for name in self.rules]}]
        data: object = {"resultType": "vector", "result": []}
        if path == "/api/v1/status/buildinfo":
            data = {"version": self.version, "goVersion": "go1.20"}
        elif path == "/api/v1/rules":
            data = {"groups": groups}
        elif path == "/api/v1/label/run/values":
            data = list(self.now if "start=" in query else self.runs)
        body = json.dumps({"status": "success", "data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[Callable[..., tuple[str, list[tuple[str, str, bytes]]]]]:
    """Return the function that starts such a Prometheus; it returns its URL and the list of its requests."""
    with ExitStack() as running:

        def started(**facts: object) -> tuple[str, list[tuple[str, str, bytes]]]:
            asked: list[tuple[str, str, bytes]] = []
            kind = type("Given", (Prometheus,), {"asked": asked, **facts})
            return running.enter_context(serving(ThreadingHTTPServer(("127.0.0.1", 0), kind))), asked

        yield started


@pytest.fixture(scope="module")
def prometheus_without_rules() -> Iterator[str]:
    """The URL of a Prometheus that has runs but none of our rules."""
    kind = type("Bare", (Prometheus,), {"asked": [], "rules": ("up:sum",), "version": "2.45.0"})
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), kind)) as url:
        yield url
