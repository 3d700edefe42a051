"""Fixtures of several folders: two generations of Prometheus and Alertmanager, rules, fake GPUs, a receiver."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from xdist.scheduler import LoadScopeScheduling

from tachograph_lab import binaries
from tachograph_lab.fake_nvml import library as fake_nvml
from tachograph_lab.pager import Pager
from tests.forking import Forking
from tests.http_servers import serving
from tests.torch_programs import TorchPrograms

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = "bookworm", "sid"
"""Prometheus 2.42 and Alertmanager 0.25, which must be had; 3.5 and 0.33, from a suite whose versions roll."""


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands break no line of their texts, for tests of what these say."""
    monkeypatch.setenv("COLUMNS", "10000")


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run a command for a terminal of 80 columns, and for none, which is 100; fail if a line could be shorter.

    Lines that match `whole` are to be pasted, or were written by others, and are not broken. What takes long is run
    for the terminal alone.
    """

    def check(run: Callable[[], object], whole: str = "(?!)", *, takes_long: bool = False) -> None:
        for width in (80,) if takes_long else (100, 80):
            monkeypatch.delenv("COLUMNS", raising=False)
            if width == 80:
                monkeypatch.setenv("COLUMNS", "80")
            run()
            out = capsys.readouterr().out
            assert out
            long = [line for line in out.splitlines() if len(line) > width and not re.match(whole, line)]
            assert [line for line in long if " " in line.strip()] == [], f"longer than {width}"

    return check


@pytest.fixture(autouse=True)
def _own_path() -> Iterator[None]:
    """Keep to itself what a command that was called here says to the processes that follow it."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    if before is None:
        os.environ.pop("PYTHONSAFEPATH", None)
    else:
        os.environ["PYTHONSAFEPATH"] = before


THRIFTY = {"GOGC": "400", "GOMAXPROCS": "1", "OMP_NUM_THREADS": "1"}
"""Saves a quarter of the CPU time of Prometheus, and of each program in Go: garbage is collected less often.

And two thirds of PyTorch's: a second thread spins while it waits for the first, which others keep from running.
"""


def pytest_configure() -> None:
    """Have no signal ignored: what a shell in the background, or nohup, ignores, each program of a test would, too.

    A handler that does nothing keeps this process from ending by a hangup; a program that it starts has the default.
    Programs in Go, and PyTorch, are thrifty.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name, value in THRIFTY.items():
        os.environ.setdefault(name, value)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while thousands of tests are collected, nor among them later: a third of a worker's start."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before -m is applied, and after all that is put in another order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark what needs Prometheus's programs: `make test-unit` does without. Workers get what takes long first."""
    for item in items:
        if "programs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.prometheus)
    result = yield
    if hasattr(config, "workerinput"):
        sizes = Counter(unit_of(item.nodeid) for item in items)
        items.sort(key=lambda item: (not item.nodeid.startswith(LONG), -sizes[unit_of(item.nodeid)]))
    return result


TOGETHER = (
    ("tests/client/core/", "tests/client/flops/", "tests/client/torch/", "tests/blackbox/test_gloo"),
    ("tests/attach/", "tests/client/transport/test_fork", "tests/client/transport/test_stack_dump", "tests/examples/"),
    ("tests/auto/test_recording", "tests/auto/test_trainings", "tests/integrations/", "tests/supervise/test_resilient"),
)  # fmt: skip
"""Folders, and files, of tests that import PyTorch, or share a process that has imported it: two seconds of a core.

Each has a third of them: what is a worker's alone must not last until long after the others have ended.
"""

LONG = (
    *(path for paths in TOGETHER for path in paths), "tests/e2e/", "tests/supervise/test_containers",
    "tests/supervise/test_killed", "tests/supervise/test_plans", "tests/runbooks/test_live", "tests/top/test_live",
    "tests/lab/live/", "tests/lab/replay/test_alertmanager_model", "tests/node/gpu/test_watch",
    "tests/preflight/test_runner",
)  # fmt: skip
"""What takes long with few tests, most of it waiting: begun late, it would leave the other workers idle at the end."""


def unit_of(nodeid: str) -> str:
    """Return what a worker gets as one: a file, or several that belong together; but rule tests one by one."""
    path = nodeid.partition("::")[0]
    for paths in TOGETHER:
        if path.startswith(paths):
            return paths[0]
    return nodeid if path == "tests/rules/test_rules.py" else path


class Scheduling(LoadScopeScheduling):
    """Gives a worker whole units, in the order of the tests, which ends with rule tests that leave no worker idle.

    A fixture of a module may train for ten seconds: where a module is spread, each worker does so.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)  # pytest may run with -p no:xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Distribute the tests over the workers."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="session", params=[OLDEST, pytest.param(NEWEST, marks=pytest.mark.slow)])
def programs(request: pytest.FixtureRequest) -> Mapping[str, Path]:
    """The programs of one generation; `make test` takes the older, but for tests that name both as parameters."""
    try:
        return binaries.find(request.param)
    except binaries.BinariesUnavailable as error:
        if request.param == OLDEST:
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def pager() -> Iterator[Pager]:
    """A webhook receiver on loopback."""
    with Pager() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def rules() -> list[dict[str, Any]]:
    """Every rule of every file, in order."""
    found: list[dict[str, Any]] = []
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            found += [rule | {"group": group["name"], "file": path.name} for rule in group["rules"]]
    return found


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config) -> Path:
    """The folder of the fake NVML library; kept between runs."""
    folder: Path = fake_nvml.build(pytestconfig.cache.mkdir("fake_nvml"))
    return folder


@pytest.fixture
def fake(library: Path, tmp_path: Path) -> Any:
    """Eight H100s with constant values."""
    return fake_nvml.FakeNvml(library, tmp_path / "nvml-state")


@pytest.fixture(scope="session")
def torch_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchPrograms]:
    """Starts programs that use PyTorch without importing it once more; it costs nothing while none runs."""
    with TorchPrograms(tmp_path_factory.mktemp("programs")) as programs:
        yield programs


@pytest.fixture(scope="session")
def forking() -> Iterator[Forking]:
    """Programs that fork, none of which runs before it is asked for."""
    programs = Forking()
    yield programs
    programs.close()


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


@pytest.fixture(scope="session")
def forked(scraped: Any, torch_programs: TorchPrograms) -> Callable[..., Any]:
    """`scraped.run` for programs that find PyTorch imported."""
    return partial(scraped.fork, torch_programs)


class Receiver:
    """Keeps the body of every request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[bytes] = []


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield an HTTP server on loopback that accepts whatever is posted."""
    found = Receiver("")

    def answer(_: str, posted: bytes) -> tuple[int, bytes]:
        found.bodies.append(posted)
        return 200, b""

    with serving(answer) as found.url:
        yield found


class Pages:
    """A server whose page, and answer to /api/node, a test writes; None answers nothing but an error.

    Those of `before` come first, once each.
    """

    def __init__(self) -> None:
        self.before: list[str | None] = []
        self.text: str | None = None
        self.judged: str | None = None
        self.url = ""

    def answer(self, path: str, _: bytes) -> tuple[int, bytes]:
        """Return what is served at a path."""
        text = self.before.pop(0) if self.before else self.judged if path == "/api/node" else self.text
        return 200 if text is not None else 503, (text or "").encode()


@pytest.fixture
def pages() -> Iterator[Pages]:
    """Pages of an exporter that are written by hand."""
    served = Pages()
    with serving(served.answer) as url:
        served.url = f"{url}/metrics"
        yield served


@pytest.fixture
def store() -> Iterator[Callable[..., str]]:
    """Start a server that answers each path of the API on its own, and any other with 404; return its URL."""
    with ExitStack() as servers:

        def start(**answers_of: str) -> str:
            def answer(path: str, _: bytes) -> tuple[int, bytes]:
                name = path.partition("?")[0].removeprefix("/api/v1/").replace("/", "_")
                body = f'{{"status":"success","data":{answers_of.get(name, "null")}}}'.encode()
                return 200 if name in answers_of else 404, body

            return servers.enter_context(serving(answer))

        yield start


@pytest.fixture
def played(pages: Pages) -> Any:
    """A node that a test plays behind those pages."""
    from tests.played import Played  # not above: most tests need nothing of an exporter

    return Played(pages)
