"""`tachograph doctor` against a real exporter, Prometheus and Alertmanager: healthy, then each part broken once."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.bundle import merged, scale_out
from tachograph.bundle.site import Site
from tachograph.doctor import node_checks, prometheus_checks
from tachograph.doctor.alertmanager_checks import TEST_PAGE, WATCHDOG, _arriving
from tachograph.doctor.check_result import FAIL, OK, UNKNOWN
from tachograph.doctor.command import main
from tachograph.doctor.node_checks import is_here
from tachograph.servers.alertmanager_api import Alertmanager
from tachograph.servers.prometheus_api import LoadedRule, Prometheus, TimeSeries
from tachograph_lab import binaries
from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import FIRING, RESOLVED, Pager
from tachograph_lab.processes import Children, answers, free_port
from tests.schemas import conforms

pytestmark = pytest.mark.usefixtures("wide")

LOOP = """
import time, tachograph
recorder = tachograph.Recorder(run="doctored")
for batch in recorder.data(range(1_000_000)):
    with recorder.step() as step:
        time.sleep(0.1)
"""
Doctor = Callable[..., tuple[int, list[str]]]


@pytest.fixture(scope="module")
def stack(pager: Pager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The stack with one rank; no group of rules is evaluated less than once a minute."""
    with Stack(tmp_path_factory.mktemp("stack"), pager.url) as running:
        for path in (running.folder / "prometheus/rules").glob("*.yml"):
            path.write_text(
                path.read_text(encoding="utf-8").replace("interval: 5m\n", "interval: 60s\n"), encoding="utf-8"
            )
        (prometheus,) = (child for child in running.children.running if child.name == "prometheus")
        os.kill(prometheus.pid, signal.SIGHUP)
        environment = {"TACHOGRAPH_SOCKET": str(running.socket)}
        running.children.start("rank", [sys.executable, "-c", LOOP], environment)
        yield running


@pytest.fixture
def doctor(stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run the command on the stack; return its status and its lines."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(stack.socket))
    addresses = [f"--{name}={stack.url(name)}" for name in ("exporter", "prometheus", "alertmanager")]

    def run(*flags: str) -> tuple[int, list[str]]:
        status = main([*addresses, *flags])
        return status, capsys.readouterr().out.splitlines()

    return run


def until(run: Callable[[], tuple[int, list[str]]], done: Callable[[list[str]], bool], seconds: float) -> list[str]:
    """Run the command until it says something; return its lines, at the latest those after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        _, lines = run()
        if done(lines) or time.monotonic() > deadline:
            return lines
        time.sleep(2)


def wrong(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("FAIL ")]


def healthy(lines: list[str]) -> bool:
    return all(line.startswith("ok   ") for line in lines[:-1])


@pytest.mark.slow
@pytest.mark.e2e
def test_a_healthy_installation_is_all_right(stack: Stack, doctor: Doctor) -> None:
    """A line for each check, and the count; status 0."""
    lines = until(doctor, healthy, 120)
    assert healthy(lines), "\n".join(lines)
    assert doctor()[0] == 0
    said = "\n".join(lines)
    for words in (
        f"socket {stack.socket}: owner ", "pid namespace: the exporter sees", f"answers at {stack.url('exporter')}",
        "NVML: 4 GPUs read", "ranks: 1 of run doctored", f" at {stack.url('prometheus')}", "groups of rules are loaded",
        "job tachograph: 1 up as tachograph", "job node|node-exporter: 1 up as node", "scraped every 5 s",
        "`instance` names 1 node, as",
        "it sends alerts to http://127.0.0.1:", "our routes and inhibitions, and our templates",
        "the watchdog is alive, and goes to watchdog",
    ):  # fmt: skip
        assert words in said


@pytest.mark.slow
@pytest.mark.e2e
def test_one_test_page_is_sent_and_ends_by_itself(doctor: Doctor, pager: Pager) -> None:
    """To whom a page of a run goes; only a person sees whether it arrives, so it is not counted as right."""
    status, lines = doctor("--send-test-page")
    assert (status, wrong(lines)) == (0, [])
    assert any(line.startswith("?    a test page was sent to page – look whether it arrives") for line in lines)
    for what in (FIRING, RESOLVED):
        page = pager.wait_for(lambda page, what=what: (page.alert, page.status) == (TEST_PAGE, what), 120)  # type: ignore[misc]
        assert page is not None
        assert page.receiver == "page"


@pytest.mark.slow
@pytest.mark.e2e
def test_what_is_no_longer_scraped_is_named(stack: Stack, doctor: Doctor) -> None:
    """An exporter that nothing scrapes, with the name that rules expect; then one at a wrong address."""
    stack.aim("tachograph", {})
    said = "FAIL rules read the job tachograph, and nothing is scraped by that name – name a job of scrape_configs so"
    lines = until(doctor, lambda lines: bool(wrong(lines)), 120)
    assert [line[: len(said)] for line in wrong(lines)] == [said]
    stack.aim("tachograph", {stack.node: "127.0.0.1:1"})
    lines = until(doctor, lambda lines: len(wrong(lines)) == 2, 60)
    assert [line.split(" ")[1] for line in wrong(lines)] == ["no", "1"]
    assert "127.0.0.1:1/metrics" in wrong(lines)[1]


@pytest.mark.e2e
def test_a_job_before_its_first_scrape_is_not_called_missing(tmp_path: Path) -> None:
    """A Prometheus that has just started knows its targets, and nothing of them: run it again."""
    with Children(tmp_path) as children:
        url = f"http://127.0.0.1:{(port := free_port())}"
        config = {"job_name": "tachograph", "scrape_interval": "1d", "static_configs": [{"targets": ["127.0.0.1:1"]}]}
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [config]}))
        program = binaries.find("bookworm")["prometheus"]
        flags = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data")
        child = children.start("prometheus", [str(program), *flags, f"--web.listen-address=127.0.0.1:{port}"])
        child.wait_until(lambda: answers(f"{url}/-/ready"), 60)
        prometheus = Prometheus(url)
        child.wait_until(lambda: bool(prometheus.targets()), 60)
        said = {f"{one.what} – {one.then}" for one in prometheus_checks.checks(prometheus)}
    assert "job tachograph: not scraped yet – run this again in a minute" in said


def test_a_socket_that_may_not_be_used(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who may, and what to do; status 1. The exporter itself answers."""
    with tempfile.TemporaryDirectory() as name, Children(tmp_path_factory.mktemp("logs")) as children:
        folder, url = Path(name), f"http://127.0.0.1:{free_port()}"
        folder.chmod(0o755)
        flags = ["--no-gpu", "--web.listen-address", url.removeprefix("http://"), "--socket", str(folder / "rank.sock")]
        child = children.start("exporter", [sys.executable, "-m", "tachograph", "exporter", *flags])
        child.wait_until(lambda: answers(f"{url}/-/ready"), 90)
        monkeypatch.setenv("TACHOGRAPH_SOCKET", str(folder / "rank.sock"))
        assert main(["--exporter", url]) == 0
        assert "mode 0666" in capsys.readouterr().out
        (folder / "rank.sock").chmod(0)
        with as_somebody():
            assert main(["--exporter", url]) == 1
        lines = capsys.readouterr().out.splitlines()
        (line,) = wrong(lines)
        assert line.startswith(f"FAIL permission denied for the exporter at {folder}/rank.sock: ")
        assert "has mode 0000" in line
        assert lines[-1] == "1 right, 1 wrong, 4 not checked"


@contextmanager
def as_somebody() -> Iterator[None]:
    """Root may use any socket: do without its rights, if it is root that tests."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_machine_without_an_exporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is at fault as a node, and not where Prometheus is asked about; who does not answer is named by address."""
    nobody = "http://127.0.0.1:1"
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(tmp_path / "none/rank.sock"))
    assert main(["--exporter", nobody]) == 1
    first, second = wrong(capsys.readouterr().out.splitlines())
    assert first.startswith(f"FAIL no exporter at {tmp_path}/none/rank.sock")
    assert "start `tachograph exporter` on this node" in first
    assert second.startswith(f"FAIL no exporter at {nobody}: Connection refused; is `tachograph exporter` running")
    assert main(["--exporter", nobody, "--prometheus", nobody, "--alertmanager", nobody]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("?    node: this machine has neither")
    assert [line[:30] for line in wrong(lines)] == ["FAIL no Prometheus at http://1", "FAIL no Alertmanager at http:/"]


PROMETHEUS = """
rule_files: [rules.yml]
scrape_configs:
  - job_name: tachograph
    scrape_interval: 1s
    static_configs: [{targets: ["127.0.0.1:1", "127.0.0.1:2"], labels: {instance: node-1}}]
    relabel_configs: [{source_labels: [__address__], target_label: port}]
  - job_name: slow
    scrape_interval: 2m
    static_configs: [{targets: ["127.0.0.1:3"], labels: {job: tachograph, instance: node-3}}]
"""
RULES = """
groups:
  - name: tachograph-meta
    interval: 1s
    rules: [{record: "run:broken:ratio", expr: 'up{job=~"tachograph|other"} + on () up'}]
"""


@pytest.mark.e2e
def test_a_prometheus_that_is_set_up_wrongly(
    programs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rules missing or failing; exporters that are down, share a name, are scraped too rarely; no Alertmanager."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(tmp_path / "none/rank.sock"))
    (tmp_path / "prometheus.yml").write_text(PROMETHEUS, encoding="utf-8")
    (tmp_path / "rules.yml").write_text(RULES, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    with Children(tmp_path) as children:
        child = children.start("prometheus", [
            programs["prometheus"], f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={address}",
        ])  # fmt: skip
        child.wait_until(lambda: answers(f"http://{address}/-/ready"), 60)

        def run() -> tuple[int, list[str]]:
            status = main(["--exporter", "http://127.0.0.1:1", "--prometheus", f"http://{address}"])
            return status, capsys.readouterr().out.splitlines()

        def scraped(lines: list[str]) -> bool:
            return len(wrong(lines)) >= 7 and any(", first node-1: " in line for line in lines)

        lines = wrong(until(run, scraped, 120))
    assert len(lines) == 7, lines
    for line, words in zip(
        lines,
        (
            "groups of rules are not loaded: ",
            "1 rule cannot be evaluated, first run:broken:ratio of tachograph-meta",
            "no target of the job tachograph|other answers", "of 3 exporters not scraped, first node-1: ",
            "exporters are scraped every 120 s", "several exporters have one `instance`: node-1",
            "it knows no Alertmanager",
        ),
        strict=True,
    ):  # fmt: skip
        assert words in line


@pytest.mark.e2e
def test_an_alertmanager_without_our_routes(
    programs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The missing parts are listed as by `bundle --check`; the test page reaches nobody."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(tmp_path / "none/rank.sock"))
    path = tmp_path / "alertmanager.yml"
    path.write_text("route: {receiver: empty}\nreceivers: [{name: empty}]\n", encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    with Children(tmp_path) as children:
        child = children.start("alertmanager", [
            programs["alertmanager"], f"--config.file={path}", f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address={address}", "--cluster.listen-address=",
        ])  # fmt: skip
        child.wait_until(lambda: answers(f"http://{address}/-/ready"), 90)
        assert (
            main(["--exporter", "http://127.0.0.1:1", "--alertmanager", f"http://{address}", "--send-test-page"]) == 1
        )
    lines = wrong(capsys.readouterr().out.splitlines())
    lacks = merged.lacks(path)
    first = f"it lacks {sum(one.count for one in lacks)} parts of our configuration, first {lacks[0].what}".replace(
        str(tmp_path), "/"
    )
    assert [line.partition(" – ")[0] for line in lines] == [
        f"FAIL {first}",
        "FAIL the watchdog, an alert that always fires, is not there",
        "FAIL the test page goes to empty, which notifies nobody",
    ]


@pytest.mark.e2e
def test_a_receiver_that_nobody_answers_for(
    programs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An Alertmanager that cannot reach whom it notifies is not right, although all of its configuration is."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(tmp_path / "none/rank.sock"))
    path, address = tmp_path / "alertmanager.yml", f"127.0.0.1:{free_port()}"
    receiver = f"{{name: page, webhook_configs: [{{url: 'http://127.0.0.1:{free_port()}/'}}]}}"
    path.write_text(f"route: {{receiver: page, group_wait: 0s}}\nreceivers: [{receiver}]\n", encoding="utf-8")
    asked = ["--exporter", "http://127.0.0.1:1", "--alertmanager", f"http://{address}", "--send-test-page"]
    with Children(tmp_path) as children:
        child = children.start("alertmanager", [
            programs["alertmanager"], f"--config.file={path}", f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address={address}", "--cluster.listen-address=",
        ])  # fmt: skip
        child.wait_until(lambda: answers(f"http://{address}/-/ready"), 90)

        def run() -> tuple[int, list[str]]:
            return main(asked), capsys.readouterr().out.splitlines()

        lines = until(run, lambda lines: any("do not arrive" in line for line in lines), 120)
    (said,) = (line for line in lines if "by webhook" in line)
    assert said.startswith("FAIL notifications by webhook do not arrive: ")


@pytest.mark.parametrize(
    ("tried", "in_vain", "said"),
    [
        (9, 0, "ok arrive"),
        (9, 4, "ok arrive"),
        (9, 8, "FAIL often do not arrive"),
        (9, 9, "FAIL do not arrive"),
    ],
)
def test_a_receiver_that_mostly_fails_is_not_right(
    tried: int, in_vain: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page cannot count on one success among many attempts; of what was never used nothing is said."""
    alertmanager = Alertmanager("http://127.0.0.1:1")
    attempts = {"slack": (float(tried), float(in_vain)), "email": (0.0, 0.0)}
    monkeypatch.setattr(Alertmanager, "attempts", lambda _: attempts)
    (one,) = _arriving(alertmanager)
    verdict, _, rest = said.partition(" ")
    assert one.verdict == verdict
    assert one.what.startswith(f"notifications by slack {rest}: {tried} attempts")


def test_the_alerts_by_name(rules: list[dict[str, Any]]) -> None:
    """The watchdog is an alert of the rules; the test page is none."""
    names = {rule.get("alert") for rule in rules}
    assert WATCHDOG in names
    assert TEST_PAGE not in names


def test_the_socket_of_another_node_is_not_looked_for_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is wrong with this machine because an exporter elsewhere was asked; one that is here has its socket."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(tmp_path / "rank.sock"))
    monkeypatch.setattr(node_checks, "is_here", lambda address: "127.0.0.1" not in address)
    with Children(tmp_path) as children:
        url = f"http://127.0.0.1:{free_port()}"
        flags = [
            "--no-gpu",
            "--web.listen-address",
            url.removeprefix("http://"),
            "--socket",
            str(tmp_path / "other.sock"),
        ]
        child = children.start("exporter", [sys.executable, "-m", "tachograph", "exporter", *flags])
        child.wait_until(lambda: answers(f"{url}/-/ready"), 90)
        assert main(["--exporter", url, "--json"]) == 0
        checks = conforms("doctor", capsys.readouterr().out)["checks"]
        assert checks[0]["what"].startswith("socket: it is on 127.0.0.1, and this machine is ")
        assert (checks[0]["verdict"], checks[0]["then"]) == ("not checked", "run tachograph doctor there")
        assert "exporter" in checks[1]["what"]
    assert main(["--exporter", url]) == 1
    assert [line[:17] for line in wrong(capsys.readouterr().out.splitlines())] == ["FAIL no exporter "]


def test_it_fits_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: Callable[..., None]) -> None:
    """What to do begins a line of its own where it does not fit beside what is wrong."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(tmp_path / "none.sock"))
    nobody = "http://127.0.0.1:9"
    fits(lambda: main(["--exporter", nobody, "--prometheus", nobody, "--alertmanager", nobody]))
    fits(lambda: main([]))


def test_which_addresses_are_this_machine() -> None:
    """Those that can be bound here; a name that nobody knows is elsewhere."""
    assert is_here("http://localhost:10024/metrics")
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.1:10024")  # RFC 5737: of documents, nobody's
    assert not is_here("https://no-such-host.invalid/metrics")


@pytest.mark.parametrize(
    ("job", "then"),
    [
        ("tachograph", "name a job of scrape_configs tachograph"),
        ("node", "name a job of scrape_configs so, or render the rules for the name that it has: "
         "tachograph bundle --out DIR --node-job NAME"),
    ],
)  # fmt: skip
def test_the_advice_on_a_missing_job_can_be_followed(job: str, then: str) -> None:
    """Only node_exporter's name is a flag of bundle, which wants a folder, too."""
    rule = LoadedRule("g", "r", f'up{{job=~"{job}"}}', "ok", "")

    class Without(Prometheus):
        def targets(self) -> list[Any]:
            return []

        def instant(self, expression: str, at: float | None = None) -> list[Any]:
            return []

    (found,) = prometheus_checks._jobs(Without("p"), [rule])
    assert found.then == then


def test_a_level_is_asked_for_its_own_groups(tmp_path: Path) -> None:
    """Of several cells and a level above, each has some groups only; one that lacks its own is told so."""
    cells = tmp_path / "cells.yml"
    cells.write_text(
        "above: {prometheus: ['p:1'], alertmanager: ['a:1']}\ncells: {b: {nodes: [n]}}\n", encoding="utf-8"
    )
    files = scale_out.files(Site({}), scale_out.read(cells))

    class Level(Prometheus):
        without = ""

        def __init__(self, level: str) -> None:
            super().__init__("p")
            self._level = level

        def version(self) -> str:
            return "Prometheus 3.5.0"

        def rules(self) -> list[LoadedRule]:
            texts = [text for name, text in files.items() if name.startswith(f"{self._level}/rules/")]
            groups = [group for text in texts for group in yaml.load(text, yaml.CSafeLoader)["groups"]]
            return [
                LoadedRule(group["name"], rule.get("record") or rule["alert"], rule["expr"], "ok", "")
                for group in groups
                for rule in group["rules"]
                if group["name"] != self.without
            ]

        def targets(self) -> list[Any]:
            return []

        def instant(self, expression: str, at: float | None = None) -> list[Any]:
            return [TimeSeries({"job": "tachograph"}, ((0.0, 1.0),))]

        def alertmanagers(self) -> list[str]:
            return ["http://a:1"] if self._level == "above" else []

    for level, what in (("above", "it is the level above cells"), ("cells/b", "it is the Prometheus of a cell: ")):
        found = list(prometheus_checks.checks(Level(level)))
        assert {one.verdict for one in found} == {OK}
        assert found[1].what.startswith(what)
        assert found[2].what.startswith("all ")
        partly = Level(level)
        partly.without = "tachograph-nodes"
        (wrong,) = (one.what for one in prometheus_checks.checks(partly) if one.verdict == FAIL)
        assert wrong.startswith("1 of our ")
        assert wrong.endswith("are not loaded: tachograph-nodes")


def test_wrong_arguments(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A test page needs somebody to send it."""
    monkeypatch.delenv("ALERTMANAGER_URL", raising=False)
    assert main(["--send-test-page"]) == 2
    assert "--send-test-page needs --alertmanager ADDRESS" in capsys.readouterr().err


@pytest.mark.parametrize("arrives", [True, False])
def test_a_store_is_asked_for_what_it_can_tell(store: Callable[..., str], arrives: bool) -> None:
    """Whether samples arrive, and what the rules record; not what is scraped, nor by whom the rules are evaluated."""
    sample = '{"metric":{},"value":[1764000000,"3"]}' if arrives else ""
    prometheus = Prometheus(store(status_buildinfo="{}", query=f'{{"result":[{sample}]}}'))
    first, samples, recorded, rest = prometheus_checks.checks(prometheus)
    arriving = OK if arrives else FAIL
    assert [first.verdict, samples.verdict, recorded.verdict, rest.verdict] == [OK, arriving, arriving, UNKNOWN]
    assert first.what.startswith("a store with Prometheus' API at http://127.0.0.1:")
    assert (samples.what == "samples of 3 exporters within 5 minutes") == arrives
    assert rest.what.startswith("whether all ")
