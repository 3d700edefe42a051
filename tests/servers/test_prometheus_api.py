"""Queries to the oldest and the newest Prometheus, to one without our rules, and to other servers."""

from __future__ import annotations

import math
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tachograph.servers.http_client import HttpError, ask
from tachograph.servers.prometheus_api import (
    DEFAULT_URL,
    Prometheus,
    PrometheusError,
    UnknownRunError,
    default_url,
    nearest,
)
from tachograph_lab.processes import Children, answers, free_port
from tests.http_servers import serving

ROOT = Path(__file__).resolve().parents[2]
RUNS = ("llama-70b", "llama-7b", "mixtral", 'odd "name"\\')
STEP, COUNT = 15, 5


def samples(began: int) -> Iterator[str]:
    """Yield a few runs, and a series of every kind of number with a gap, as OpenMetrics."""
    times = [began + i * STEP for i in range(COUNT)]
    for run in RUNS:
        label = run.replace("\\", "\\\\").replace('"', '\\"')
        yield from (f'tachograph_rank_info{{run="{label}",rank="0"}} 1 {at}\n' for at in times)
    for at, value in zip(times, ("1", "NaN", None, "+Inf", "-Inf"), strict=True):
        if value is not None:
            yield f'odd{{of="numbers"}} {value} {at}\n'
    yield "# EOF\n"


@pytest.fixture(scope="module")
def began() -> int:
    return int(time.time()) - STEP * COUNT


@pytest.fixture(scope="module")
def urls(
    programs: Mapping[str, Path], began: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """One Prometheus with our rules and samples, one with neither."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "samples").write_text("".join(samples(began)), encoding="utf-8")
    make = [programs["promtool"], "tsdb", "create-blocks-from", "openmetrics", folder / "samples", folder / "ours"]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    with Children(folder) as children:
        found, started = {}, []
        for name, rules in (("ours", [str(ROOT / "prometheus/rules/runs.yml")]), ("bare", [])):
            (folder / f"{name}.yml").write_text(yaml.safe_dump({"rule_files": rules}), encoding="utf-8")
            address = f"127.0.0.1:{free_port()}"
            found[name] = f"http://{address}"
            command = [
                programs["prometheus"], f"--config.file={folder / name}.yml", f"--storage.tsdb.path={folder / name}",
                "--storage.tsdb.retention.time=1y", f"--web.listen-address={address}",
            ]  # fmt: skip
            started.append((children.start(name, command), found[name]))
        for child, url in started:
            child.wait_until(lambda url=url: answers(f"{url}/-/ready"), 60)  # type: ignore[misc]
        yield found


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Start a server with one response to every request; return its URL."""
    with ExitStack() as servers:
        yield lambda status, body: servers.enter_context(serving(lambda *_: (status, body)))


@pytest.mark.e2e
def test_both_generations_answer(urls: dict[str, str], began: int) -> None:
    """An instant query returns a sample per series, a range query all; a slash at the end of the URL is ignored."""
    prometheus = Prometheus(urls["ours"] + "/")
    prometheus.check()
    (one,) = prometheus.instant('tachograph_rank_info{run="mixtral"}', at=began)
    assert (one.labels["run"], one.value, one.samples) == ("mixtral", 1.0, ((began, 1.0),))
    assert prometheus.instant("nothing") == []
    (one,) = prometheus.range('tachograph_rank_info{run="mixtral"}', began, began + STEP * (COUNT - 1), STEP)
    assert one.samples == tuple((began + i * STEP, 1.0) for i in range(COUNT))


@pytest.mark.e2e
def test_numbers_that_are_none(urls: dict[str, str], began: int) -> None:
    """NaN and both infinities are preserved, and a gap stays a gap."""
    (one,) = Prometheus(urls["ours"]).range('last_over_time(odd{of="numbers"}[14s])', began, began + 4 * STEP, STEP)
    assert [at for at, _ in one.samples] == [began, began + STEP, began + 3 * STEP, began + 4 * STEP]
    values = [value for _, value in one.samples]
    assert (values[0], math.isnan(values[1]), *values[2:]) == (1.0, True, math.inf, -math.inf)


@pytest.mark.e2e
def test_runs_by_time(urls: dict[str, str], began: int) -> None:
    """The runs are those of the window, sorted; known() accepts any name as it is written."""
    prometheus = Prometheus(urls["ours"])
    assert prometheus.runs() == sorted(RUNS)
    assert prometheus.runs(began, began + STEP) == sorted(RUNS)
    assert prometheus.runs(began - 86_400 * 30, began - 86_400 * 29) == []
    for run in RUNS:
        prometheus.known(run)


@pytest.mark.e2e
def test_unknown_run(urls: dict[str, str]) -> None:
    """The error has the name of the unknown run and those nearest to it; without any run it says what to check."""
    with pytest.raises(UnknownRunError, match=r"no run 'lama-7b' .*; the nearest are llama-7b, llama-70b \(2 more\)"):
        Prometheus(urls["ours"]).known("lama-7b")
    with pytest.raises(UnknownRunError, match=r"it has no run at all: is the exporter scraped"):
        Prometheus(urls["bare"]).known("lama-7b")


@pytest.mark.e2e
def test_without_our_rules(urls: dict[str, str]) -> None:
    """A Prometheus with none of our rules is recognised, and the error says what to add."""
    with pytest.raises(PrometheusError, match=r"none of our rules: add prometheus/rules/\*\.yml to its rule_files"):
        Prometheus(urls["bare"]).check()


@pytest.mark.e2e
def test_a_refused_query(urls: dict[str, str]) -> None:
    """The error of Prometheus is in the text."""
    with pytest.raises(PrometheusError, match=r"refused the query: .*parse error"):
        Prometheus(urls["ours"]).instant("sum(")


def test_unreachable() -> None:
    """If nothing listens there, the text has the address, the reason, and how to give another address."""
    with pytest.raises(PrometheusError, match=r"no Prometheus at http://127\.0\.0\.1:1: .*refused; .*--prometheus"):
        Prometheus("http://127.0.0.1:1").check()
    with pytest.raises(PrometheusError, match=r"'ftp://p' is not an address of Prometheus: expected HOST"):
        Prometheus("ftp://p")
    with pytest.raises(PrometheusError, match=r"no Prometheus at http://127\.0\.0\.1:1: "):
        Prometheus("127.0.0.1:1").check()


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"<html>hello</html>"), (200, b"[]"), (200, b'"text"'), (404, b"nothing here"), (500, b""), (200, b"")],
)
def test_not_a_prometheus(serve: Callable[..., str], status: int, body: bytes) -> None:
    """Any other server gives one line, never a traceback."""
    for asked in (lambda prometheus: prometheus.check(), lambda prometheus: prometheus.instant("up")):
        with pytest.raises(PrometheusError) as raised:
            asked(Prometheus(serve(status, body), timeout=5))
        assert "\n" not in str(raised.value)


def test_the_reason_is_that_of_the_request() -> None:
    """Not of what its caller was handling when it asked."""
    try:
        raise TimeoutError("the request before")
    except TimeoutError:
        with pytest.raises(HttpError, match="Connection refused"):
            ask("http://127.0.0.1:1/", 5)


def test_too_old(serve: Callable[..., str]) -> None:
    """For a Prometheus that is too old, the error says which version is needed."""
    url = serve(200, b'{"status":"success","data":{"version":"2.33.5","goVersion":"go1.17"}}')
    with pytest.raises(PrometheusError, match=r"2\.33\.5 .* is too old: 2\.42 or later is needed"):
        Prometheus(url).check()


STORES = {
    "{}": "a store with Prometheus' API",
    '{"version":"2.24.0"}': "a store with Prometheus' API, which says 2.24.0",
    '{"version":"0.36.1","goVersion":"go1.22"}': "a store with Prometheus' API, which says 0.36.1",
    '{"application":"Grafana Mimir","version":"2.10.0","goVersion":"go1.21"}': "Grafana Mimir 2.10.0",
}
"""What VictoriaMetrics 1.79 and 1.112, Thanos and Mimir say of themselves, and what we call them."""


@pytest.mark.parametrize("build", STORES)
@pytest.mark.parametrize("rules", [{}, {"rules": '{"groups":[]}'}])
def test_a_store_with_what_our_rules_recorded_will_do(
    store: Callable[..., str], build: str, rules: dict[str, str]
) -> None:
    """Whatever version it says, and whether it answers for rules; not one in which nothing of them arrives."""
    sample = '{"metric":{"__name__":"run:ranks:count","run":"a"},"value":[1764000000,"8"]}'
    there = Prometheus(store(status_buildinfo=build, query=f'{{"result":[{sample}]}}', **rules))
    assert there.version() == STORES[build]
    there.check()
    bare = Prometheus(store(status_buildinfo=build, query='{"result":[]}', **rules))
    with pytest.raises(PrometheusError, match=r"has none of our rules: add .* or, where another one evaluates them"):
        bare.check()


def test_a_silent_one_is_not_waited_for() -> None:
    """A server that accepts and never responds costs the timeout."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(PrometheusError, match=r"no Prometheus at .*timed out"):
            Prometheus(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3).check()


def test_nearest_names() -> None:
    """Similar names come first, then those that contain the text, else any; never all of thousands."""
    names = [f"run-{i}" for i in range(1000)] + ["llama-7b"]
    assert nearest("lama-7b", ["llama-7b", "gpt"]) == "the nearest is llama-7b (1 more)"
    assert nearest("zzz", ["gpt"]) == "there is gpt"
    assert nearest("zzz", names) == "there are run-0, run-1, run-2, run-3, run-4 (996 more)"


def test_default_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is $PROMETHEUS_URL, else this machine."""
    monkeypatch.delenv("PROMETHEUS_URL", raising=False)
    assert default_url() == DEFAULT_URL
    monkeypatch.setenv("PROMETHEUS_URL", "http://elsewhere:9090")
    assert default_url() == "http://elsewhere:9090"
