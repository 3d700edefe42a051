"""Names that others chose reach no terminal and no page raw, from no command; and no value of theirs breaks one."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
import unicodedata
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from rich.console import Console

from tachograph import __main__ as commands
from tachograph.catalog import index as catalog
from tachograph.node.api.answer import NodeAnswer
from tachograph.node.ranks.limits import Limits
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample
from tachograph.top import queries
from tachograph_lab.commands import fleet as fleet_command
from tachograph_lab.demo.demo_scenarios import DemoResult, DemoScenario
from tachograph_lab.demo.fault_injection import HANG, InjectedFault
from tachograph_lab.demo.screen import Screen
from tachograph_lab.pager import Pager
from tests.http_servers import serving
from tests.node.conftest import HandClock, Table, TwoGpus

pytestmark = pytest.mark.usefixtures("wide")

HOSTILE = (
    "a\x1b[31;66m\x1b[2J\x1b]52;c;ZXZpbA==\x07\x1b]8;;http://evil\x1b\\\x9b31m\x90q\x9c\r\n\t\x08\x7f\x0c\x85\u2028"
    "\u202e\u2066\u200f\u200b<img src=x>[red]"
)
OWN = re.compile(r"\x1b\[[<>?]?[0-9;]*(?:\$p|[mHJKhltu])|\x1b\]22;[a-z]*\x07|\x1bP=[12]s\x1b\\")
"""Escape sequences of the program itself; HOSTILE contains such, too, of which 31;66 must never appear."""
DEADLINE = 60.0

RECORDED = (
    *queries.FIGURES, *queries.OF_RANKS, *queries.OF_GPUS, "rank:hang_suspect:behind", "node:gpu_lost:info",
    "ALERTS",
)  # fmt: skip
NAMED = (
    "run", "instance", "state", "phase", "alertname", "gpu", "uuid", "name", "cause", "reason", "xid", "action",
    "device", "world_size", "group", "attempt", "alertstate", "meaning", "op", "node",
)  # fmt: skip
LABELS = dict.fromkeys(NAMED, HOSTILE) | {"rank": "0", "severity": "critical"}


def assert_harmless(text: str) -> None:
    """Nothing below a blank but line ends, nothing that turns or hides what follows."""
    odd = {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp") and each != "\n"}
    assert not odd, (odd, text[:300])


@dataclass
class Prometheus:
    """Answers every query with a sample of every series that anything asks for, each with every label, of one value."""

    value: str = "1"
    alertname: str = HOSTILE

    def answer(self, path: str, posted: bytes) -> tuple[int, bytes]:
        """Return status and body; what is asked is in the path, or posted."""
        asked = {name: values[0] for name, values in parse_qs(posted.decode() or urlsplit(path).query).items()}
        path = urlsplit(path).path.removeprefix("/api/v1/")
        now = time.time()
        labels = LABELS | {"alertname": self.alertname}
        metrics = [labels | {"__name__": name, "mark": mark} for name in RECORDED for mark in ("culprit", "idle")]
        annotations = {"summary": f"{HOSTILE} {{{{ $labels.run }}}}", "description": HOSTILE, "runbook_url": HOSTILE}
        alert = {"labels": {k: v for k, v in labels.items() if k != "alertstate"}, "annotations": annotations}
        recorded = {"name": "run:ranks:count", "type": "recording"}
        alerting = {"name": self.alertname, "labels": {}, "annotations": annotations, "alerts": [alert]}
        data: object = {
            "status/buildinfo": {"version": "3.5.0"},
            "rules": {"groups": [{"rules": [recorded, alerting]}]},
            "label/run/values": [HOSTILE, "r"],
            "query": {"result": [{"metric": one, "value": [now, self._of(asked, one)]} for one in metrics]},
        }.get(path)
        if path == "query_range":
            end, step = float(asked["end"]), float(asked["step"])
            points = [end - i * step for i in (9, 8, 4, 3, 2, 1, 0)]
            data = {"result": [{"metric": one, "values": [[at, self.value] for at in points]} for one in metrics]}
        if data is None:
            return 422, json.dumps({"status": "error", "error": HOSTILE}).encode()
        return 200, json.dumps({"status": "success", "data": data}).encode()

    def _of(self, asked: Mapping[str, str], labels: Mapping[str, str]) -> str:
        """Counts that Prometheus returns are numbers of things, whatever ranks send."""
        return "3" if asked.get("query", "").startswith("count") or ":count" in labels["__name__"] else self.value


@pytest.fixture
def prometheus() -> Iterator[Callable[..., str]]:
    """Return the function that starts a Prometheus of these facts, and gives its URL."""
    with ExitStack() as servers:
        yield lambda **facts: servers.enter_context(serving(Prometheus(**facts).answer))


Said = tuple[int, str, str]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command; return status, output and errors."""

    def run(*arguments: str) -> Said:
        status = commands.main(arguments)
        said = capfd.readouterr()
        return status, said.out, said.err

    return run


def conclusions() -> str:
    """Return an answer of /api/node that has HOSTILE in place of every text but the state of runs and ranks."""
    hand, gpu = HandClock(), GpuIdentity("0", "GPU-0", "H100")
    table = Table(Limits(), hand.clock, TwoGpus())
    table.greet("a", uuid="GPU-0")
    table.tell("a", phase="data", metrics={"loss": "NaN"}, notices=["n"])
    lost = Sample(catalog.GPU_UNAVAILABLE, ("0", "GPU-0", "lost"), 1)
    judged = NodeAnswer("n", table, [gpu], GpuSnapshot((lost,), 0.0, hand.now, False, "blind"), hand.clock)

    def hostile(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: hostile(name, each) for name, each in value.items()}
        if isinstance(value, list):
            return [hostile(key, each) for each in value]
        return HOSTILE if isinstance(value, str) and key not in ("state", "loss") else value

    return json.dumps(hostile("", json.loads(judged.as_json())))


def served(answering: Callable[..., str], text: str) -> str:
    body = text.encode()
    return answering(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def test_top_of_a_node(answering: Callable[..., str], run: Callable[..., Said]) -> None:
    """One picture is plain text; --json has the very names."""
    url = served(answering, conclusions())
    status, out, error = run("top", "--once", "--interval", "0.2", "--exporter", url)
    assert (status, error) == (0, "")
    assert "a?[31;66m?[2J?]52;" in out
    assert_harmless(out)
    status, out, error = run("top", "--json", "--interval", "0.2", "--exporter", url)
    assert (status, error) == (0, "")
    assert_harmless(out)
    facts = json.loads(out)
    assert facts["runs"][0]["name"] == facts["ranks"][0]["phase"] == facts["gpus"][0]["name"] == HOSTILE


def test_top_of_a_node_whose_run_has_no_name(answering: Callable[..., str], run: Callable[..., Said]) -> None:
    """Something else than a text in its place is shown as one."""
    judged = json.loads(conclusions())
    judged["runs"].append(judged["runs"][0] | {"run": True})
    status, out, error = run("top", "--once", "--interval", "0.2", "--exporter", served(answering, json.dumps(judged)))
    assert (status, error) == (0, "")
    assert "True" in out


def test_top_of_a_run(prometheus: Callable[..., str], run: Callable[..., Said]) -> None:
    """The same through Prometheus, whose alerts, nodes, states and runs are others' names, too."""
    url = prometheus()
    status, out, error = run("top", "r", "--once", "--prometheus", url)
    assert (status, error) == (0, "")
    for heading in ("critical", "culprit", "TROUBLE"):
        assert heading in out
    assert out.count("a?[31;66m") > 3
    assert_harmless(out)
    status, out, _ = run("top", "r", "--json", "--prometheus", url)
    assert status == 0
    assert_harmless(out)
    facts = json.loads(out)
    assert facts["alerts"][0]["name"] == facts["ranks"][0]["node"] == HOSTILE


def test_a_run_that_nobody_knows(prometheus: Callable[..., str], run: Callable[..., Said]) -> None:
    """The nearest names are shown as text."""
    status, out, error = run("top", "rr", "--once", "--prometheus", prometheus())
    assert (status, out, error.count("\n")) == (1, "", 1)
    status, out, error = run("top", HOSTILE + "x", "--once", "--prometheus", prometheus())
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert error.count("66m") > 1
    assert_harmless(error)


def test_which_run(prometheus: Callable[..., str], run: Callable[..., Said]) -> None:
    """The list of runs that top offers is text."""
    status, out, error = run("top", "--prometheus", prometheus())
    assert (status, out) == (2, "")
    assert "which RUN? it has a?[31;66m" in error
    assert_harmless(error)


def test_the_live_screen(prometheus: Callable[..., str]) -> None:
    """On a terminal nothing comes but what the program itself draws with."""
    url = prometheus()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "PYTHONUTF8": "1", "COLUMNS": "200", "LINES": "50"})
        arguments = ["-m", "tachograph", "top", "r", "--prometheus", url]
        os.execv(sys.executable, [sys.executable, *arguments])
    raw, end, left = b"", time.monotonic() + DEADLINE, False
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            raw += os.read(terminal, 65536)
        except OSError:
            break
        if not left and b"quit" in raw:
            os.write(terminal, b"q")
            left = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    text = raw.decode()
    assert "a?[31;66m" in text
    assert "\x1b[31;66m" not in text
    assert_harmless(OWN.sub("", text).replace("\r\n", "\n"))


def test_silences(answering: Callable[..., str], run: Callable[..., Said]) -> None:
    """Who asked for a silence, why, of what, and what Alertmanager says against one."""
    silence = {
        "id": HOSTILE, "status": {"state": "active"}, "comment": HOSTILE, "createdBy": HOSTILE,
        "startsAt": "2026-01-01T00:00:00Z", "endsAt": "2099-01-01T00:00:00Z",
        "matchers": [{"name": HOSTILE, "value": HOSTILE, "isRegex": False}],
    }  # fmt: skip
    status, out, error = run("silence", "--list", "--alertmanager", served(answering, json.dumps([silence])))
    assert (status, error, out.count("\n")) == (0, "", 3)
    assert out.count("a?[31;66m") == 5
    assert_harmless(out)
    begin = ("silence", HOSTILE, "--for", "1h", "--why", "w", "--by", "b", "--alertmanager")
    status, out, error = run(*begin, served(answering, json.dumps({"silenceID": HOSTILE})))
    assert (status, error, out.count("\n")) == (0, "", 3)
    assert_harmless(out)
    refusal = HOSTILE.encode()
    url = answering(b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal)
    status, out, error = run(*begin, url)
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert_harmless(error)


VALUES = ["NaN", "-1e308"]
MORE = [pytest.param(value, marks=pytest.mark.slow) for value in ("-1", "+Inf", "-Inf", "1e308", "5e-324", "1e18")]


@pytest.mark.parametrize("value", [*VALUES, *MORE])
def test_values_that_break_no_report_and_no_screen(
    prometheus: Callable[..., str], run: Callable[..., Said], value: str, tmp_path: Path
) -> None:
    """One rank's number costs neither the report nor the picture of the run."""
    url = prometheus(value=value, alertname="LossSpike")
    status, out, error = run("report", "r", "--out", str(tmp_path / "out.html"), "--prometheus", url)
    assert (status, error) == (0, "")
    assert_harmless(out)
    html = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert_harmless(html)
    assert "<img" not in html
    status, out, error = run("top", "r", "--once", "--prometheus", url)
    assert (status, error) == (0, "")
    assert_harmless(out)


def test_the_report(prometheus: Callable[..., str], run: Callable[..., Said], tmp_path: Path) -> None:
    """Its output to a file and to standard output."""
    url = prometheus()
    status, out, error = run("report", "r", "--out", str(tmp_path / "out.html"), "--prometheus", url)
    assert (status, error, out.count("\n")) == (0, "", 1)
    assert "the first was a?[31;66m" in out
    assert_harmless(out)
    html = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert_harmless(html)
    assert "<img" not in html
    status, out, _ = run("report", "r", "--out", "-", "--prometheus", url)
    assert status == 0
    assert_harmless(out)


def notify(pager: Pager) -> None:
    labels = {"alertname": HOSTILE, "severity": "critical", "run": HOSTILE, "rank": HOSTILE}
    alert = {
        "status": "firing", "labels": labels, "annotations": {"summary": HOSTILE, "description": HOSTILE},
        "fingerprint": "f", "startsAt": "2026-01-01T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z",
    }  # fmt: skip
    body = json.dumps({"version": "4", "status": "firing", "receiver": "p", "alerts": [alert]}).encode()
    request = urllib.request.Request(f"{pager.url}/p", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=DEADLINE).close()


def test_pages_that_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """The demo and the lab print what a pager received, and anyone on the machine can reach the pager."""
    with Pager() as pager:
        notify(pager)
        page = pager.wait_for(lambda _: True, DEADLINE)
    assert page is not None
    with Screen(Console(file=sys.stdout, highlight=False, width=200)) as screen:
        screen.page(page, 1.0, wanted=False)
        screen.summary(
            [DemoResult(DemoScenario("t", InjectedFault(HANG, rank=3), "RunHung", 30), 31.5, page, 22.8, 12.0)], [page]
        )
    fleet_command._print_page(page)
    out = capfd.readouterr().out
    assert out.count("a?[31;66m") >= 6
    assert_harmless(out)


def test_a_reader_that_leaves_is_no_error(answering: Callable[..., str]) -> None:
    """`tachograph top … | head` ends quietly, as a program that SIGPIPE ends."""
    url = served(answering, conclusions())
    for arguments in (["top", "--once", "--interval", "0.2", "--exporter", url], ["--help"]):
        child = subprocess.Popen(
            [sys.executable, "-m", "tachograph", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        with child.stderr:
            assert child.stderr.read() == b"", arguments
        assert child.wait(DEADLINE) == 141, arguments
