"""What tests of several parts share: two generations of Prometheus and Alertmanager, rules, GPUs, a receiver."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tachograph.lab import binaries, simulated_gpus

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = "bookworm", "sid"
"""Prometheus 2.42 and Alertmanager 0.25, which must be had; 3.5 and 0.33, from a suite whose versions roll."""


@pytest.fixture(scope="session", params=[OLDEST, NEWEST])
def programs(request: pytest.FixtureRequest) -> Mapping[str, Path]:
    """The programs of one generation."""
    try:
        return binaries.ensure(request.param)
    except binaries.BinariesUnavailable as error:
        if request.param == OLDEST:
            pytest.fail(str(error))
        pytest.skip(str(error))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the rule tests last: until then promtool works through them beside the others, see `behaviour`."""
    items.sort(key=lambda item: item.name.startswith("test_rules_behave"))


@pytest.fixture(scope="session", autouse=True)
def behaviour(request: pytest.FixtureRequest) -> Iterator[Mapping[tuple[str, str], Future[tuple[int | None, str]]]]:
    """Yield what promtool makes of each rule test: status (None: no such suite to be had) and words.

    It takes four minutes of one core, which most other tests leave idle; at the lowest priority it is in nobody's way.
    """
    wanted = sorted(
        (item.callspec.params["suite"], item.callspec.params["name"])  # type: ignore[attr-defined]
        for item in request.session.items
        if item.name.startswith("test_rules_behave")
    )
    with ThreadPoolExecutor(1) as pool:
        yield {(suite, name): pool.submit(_promtool, suite, name) for suite, name in wanted}
        pool.shutdown(cancel_futures=True)


def _promtool(suite: str, name: str) -> tuple[int | None, str]:
    try:
        program = binaries.ensure(suite)["promtool"]
    except binaries.BinariesUnavailable as error:
        return (None if suite == NEWEST else 1), str(error)
    done = subprocess.run(
        ["nice", "-n", "19", program, "test", "rules", ROOT / "tests/rules" / name],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="session")
def rules() -> list[dict[str, Any]]:
    """Every rule of every file, in order."""
    found: list[dict[str, Any]] = []
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            found += [rule | {"group": group["name"], "file": path.name} for rule in group["rules"]]
    return found


@pytest.fixture(scope="session")
def nvml_build() -> ModuleType:
    """The module tests/nvml/build.py."""
    return simulated_gpus.library_module()


@pytest.fixture(scope="session")
def library(nvml_build: ModuleType, pytestconfig: pytest.Config) -> Path:
    """The folder of the made-up NVML library; kept between runs."""
    folder: Path = nvml_build.build(pytestconfig.cache.mkdir("fake_nvml"))
    return folder


@pytest.fixture
def fake(nvml_build: ModuleType, library: Path, tmp_path: Path) -> Any:
    """Eight H100s whose values stand still."""
    return nvml_build.FakeNvml(library, tmp_path / "nvml-state")


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Runs training scripts against a real exporter; see tests/integrations/scraped.py."""
    spec = importlib.util.spec_from_file_location("scraped", ROOT / "tests/integrations/scraped.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["scraped"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.Scraped(tmp_path_factory.mktemp("exporter")) as running:
        yield running


class Receiver:
    """Keeps the body of every request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield an HTTP server on loopback that accepts whatever is posted."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join(20)
