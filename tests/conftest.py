"""What tests of several parts share: two generations of Prometheus and Alertmanager, rules, GPUs, a receiver."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tachograph_lab import binaries
from tachograph_lab.fake_nvml import library as fake_nvml

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = "bookworm", "sid"
"""Prometheus 2.42 and Alertmanager 0.25, which must be had; 3.5 and 0.33, from a suite whose versions roll."""

ALONE = "test_rules_behave"
"""The tests of which each is a group of its own."""

LONG = (
    "checkpoints_test", "collectives_test", "data_test", "efficiency_test", "efficiency_trend_test", "exporter_test",
    "gpu_faults_test", "learning_spikes_test", "learning_test", "mutants_", "network_test", "progress_test",
    "ranks_test", "restarts_test", "skew_test", "skew_turns_test",
)  # fmt: skip
"""How the names of rule tests begin that `make test` runs on the newer generation only; `make test-all`: on both."""

ON_NEWEST = (
    f"test_a_stranger_neither_silences_nor_pages[{OLDEST}", f"test_prometheus_scrapes_it[{OLDEST}",
    f"test_one_of_1024_ranks_is_named_in_the_words_a_person_must_receive[{OLDEST}",
)  # fmt: skip
"""How other tests begin of which the same is true."""


@pytest.fixture(scope="session", params=[OLDEST, NEWEST])
def programs(request: pytest.FixtureRequest) -> Mapping[str, Path]:
    """The programs of one generation."""
    try:
        return binaries.find(request.param)
    except binaries.BinariesUnavailable as error:
        if request.param == OLDEST:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The real stack waits most, so it comes first; promtool computes most, and comes last; the rest fills the gaps."""
    for item in items:
        if item.name.startswith((*ON_NEWEST, *(f"{ALONE}[{OLDEST}-{name}" for name in LONG))):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: 0 if "e2e" in item.path.parts else 2 if item.name.startswith(ALONE) else 1)


class Groups(LoadScopeScheduling):
    """Tests that share what is costly to start run in one process: those of a file, and all that need the stack."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, name = nodeid.partition("::")
        if name.startswith(ALONE):
            return nodeid
        return "e2e" if "/e2e/" in path else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Spread the groups over the processes of `pytest -n`, in order."""
    return Groups(config, log)


@pytest.fixture(scope="session")
def rules() -> list[dict[str, Any]]:
    """Every rule of every file, in order."""
    found: list[dict[str, Any]] = []
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            found += [rule | {"group": group["name"], "file": path.name} for rule in group["rules"]]
    return found


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> Path:
    """The folder of the fake NVML library; kept between runs."""
    folder: Path = fake_nvml.build(pytestconfig.cache.mkdir("fake_nvml"))
    return folder


@pytest.fixture
def fake(library: Path, tmp_path: Path) -> Any:
    """Eight H100s whose values stand still."""
    return fake_nvml.FakeNvml(library, tmp_path / "nvml-state")


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
