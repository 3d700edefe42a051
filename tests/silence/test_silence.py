"""`tachograph silence` against the real Alertmanager of both generations."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tachograph.silence.command import RESTART_ALERTS, main
from tachograph_lab.pager import Pager
from tachograph_lab.processes import Children, answers, free_port
from tests.schemas import conforms

pytestmark = pytest.mark.usefixtures("wide")

Alert = dict[str, str]
CONFIGURATION = """
route: {{receiver: p, group_by: ['...'], group_wait: 0s}}
receivers: [{{name: p, webhook_configs: [{{url: "{}/p"}}]}}]
"""


class Running:
    """A running Alertmanager that notifies a pager at once."""

    def __init__(self, url: str, pager: Pager) -> None:
        self.url = url
        self.pager = pager

    def silence(self, *arguments: str) -> int:
        return main([*arguments, "--alertmanager", self.url])


@pytest.fixture
def running(programs: Mapping[str, Path], tmp_path: Path) -> Iterator[Running]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Pager() as pager, Children(tmp_path) as children:
        (tmp_path / "c.yml").write_text(CONFIGURATION.format(pager.url), encoding="utf-8")
        child = children.start("alertmanager", [
            programs["alertmanager"], f"--config.file={tmp_path / 'c.yml'}", f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
        ])  # fmt: skip
        child.wait_until(lambda: answers(f"{url}/-/ready"), 90)
        yield Running(url, pager)


def raise_alerts(url: str, *alerts: Alert) -> None:
    body = json.dumps([{"labels": labels} for labels in alerts]).encode()
    request = urllib.request.Request(f"{url}/api/v2/alerts", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=60).close()


@pytest.mark.e2e
def test_a_silence_holds_for_its_run_alone_until_it_is_ended(running: Running, capsys: Any) -> None:
    """No alert of exactly that run is sent; the list has author and reason; the printed id ends the silence."""
    assert running.silence("llama.7b", "--for", "20m", "--why", "new switch", "--by", "ada") == 0
    said = capsys.readouterr().out
    assert re.match(r"Run llama\.7b is silenced until \d\d:\d\d UTC, \d\d \w+ \(20 min\): all alerts\.\n", said)
    silence_id = re.search(r"--expire (\S+) --alertmanager", said).group(1)  # type: ignore[union-attr]
    assert running.silence("llama.7b", "--list") == 0
    listed = capsys.readouterr().out
    assert listed.startswith(f"{silence_id}  until ")
    assert listed.endswith('    run="llama.7b"\n    ada: new switch\n')
    assert running.silence("other", "--list") == 0
    assert capsys.readouterr().out == "Run other is not silenced.\n"

    raise_alerts(
        running.url, {"alertname": "RankDead", "run": "llama.7b"}, {"alertname": "RankDead", "run": "llamax7b"}
    )
    assert running.pager.wait_for(lambda page: page.labels["run"] == "llamax7b", 60)
    assert not running.pager.wait_for(lambda page: page.labels["run"] == "llama.7b", 0.3)
    assert running.silence("--expire", silence_id) == 0
    assert capsys.readouterr().out == f"Silence {silence_id} has ended.\n"
    raise_alerts(running.url, {"alertname": "LossNotFinite", "run": "llama.7b"})
    assert running.pager.wait_for(lambda page: page.alert == "LossNotFinite", 60)
    assert running.silence("--list") == 0
    assert capsys.readouterr().out == "There are no silences.\n"


@pytest.mark.e2e
def test_a_planned_restart_leaves_real_faults_audible(running: Running, capsys: Any) -> None:
    """Alerts that a restart causes are silenced; a broken GPU of the run is not."""
    assert running.silence("r", "--for", "1h30m", "--why", "new code", "--planned-restart") == 0
    assert "(1 h 30 min): alerts that a restart causes." in capsys.readouterr().out
    raise_alerts(running.url, *({"alertname": name, "run": "r"} for name in ("RunHung", "RankDead", "GpuLost")))
    assert running.pager.wait_for(lambda page: page.alert == "GpuLost", 60)
    assert not running.pager.wait_for(lambda page: page.alert != "GpuLost", 0.3)


@pytest.mark.e2e
def test_everything_as_json(running: Running, capsys: Any) -> None:
    """What was created, what there is and what was ended are objects with one form; the address needs no scheme."""
    running.url = running.url.removeprefix("http://")

    def said(*arguments: str) -> Any:
        assert running.silence(*arguments, "--json") == 0
        return conforms("silence", capsys.readouterr().out)

    created = said("r", "--for", "20m", "--why", "new switch", "--by", "ada", "--planned-restart")
    (one,) = created["silences"]
    assert (one["by"], one["why"], one["state"]) == ("ada", "new switch", "active")
    assert one["matchers"][0] == 'run="r"'
    (listed,) = said("--list")["silences"]
    assert {**listed, "starts": "", "ends": ""} == {**one, "starts": "", "ends": ""}
    assert listed["ends"][:19] == one["ends"][:19]
    assert said("--expire", one["id"]) == {"version": 1, "silences": [], "ended": one["id"]}
    assert said("--list")["silences"] == []


@pytest.mark.e2e
def test_an_unknown_id_is_reported(running: Running, capsys: Any) -> None:
    """One line, status 1."""
    assert running.silence("--expire", "00000000-0000-0000-0000-000000000000") == 1
    assert "there is no silence with this id" in capsys.readouterr().err


def test_no_alertmanager_is_reported_in_one_line(capsys: Any) -> None:
    """The line says what to do."""
    assert main(["--list", "--alertmanager", f"http://127.0.0.1:{free_port()}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("tachograph silence: no Alertmanager at http://127.0.0.1:")
    assert said.count("\n") == 1
    assert "$ALERTMANAGER_URL" in said
    assert main(["--list", "--alertmanager", "ftp://nonsense"]) == 1
    assert capsys.readouterr().err.startswith("tachograph silence: 'ftp://nonsense' is not an address of Alertmanager")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the RUN"),
        (["r", "--why", "w"], "give the duration"),
        (["r", "--for", "20m"], "give the reason"),
        (["r", "--for", "20m", "--why", "  "], "give the reason"),
        (["r", "--for", "20m", "--why", "w", "--by", ""], "say who"),
        (["r", "--for", "20", "--why", "w"], "'20' is not a duration: write 20m"),
        (["r", "--for", "0m", "--why", "w"], "must last longer than 0 s"),
        (["r", "--for", "soon", "--why", "w"], "is not a duration"),
        (["r", "--for=-5m", "--why", "w"], "is not a duration"),
        (["r", "--for", "9999999d", "--why", "w"], "longer than 292 years"),
        (["r", "--for", "4h1s", "--why", "w"], "add --yes to confirm"),
        (["--list", "--expire", "x"], "not both"),
        (["--list", "--for", "20m"], "cannot be combined with options that create"),
        (["r", "--expire", "x"], "cannot be combined with options that create"),
        (["--expire", ""], "needs an id"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], words: str, capsys: Any) -> None:
    """Status 2, before a request is sent."""
    assert main([*arguments, "--alertmanager", "http://127.0.0.1:1"]) == 2
    assert words in capsys.readouterr().err


def test_a_long_silence_needs_a_yes(capsys: Any) -> None:
    """With --yes, the request is sent."""
    assert main(["r", "--for", "2d", "--why", "w", "--by", "b", "--yes", "--alertmanager", "http://127.0.0.1:1"]) == 1
    assert "no Alertmanager" in capsys.readouterr().err


def test_alerts_of_a_restart_exist(rules: list[dict[str, Any]]) -> None:
    """A renamed alert must not page through a planned restart."""
    assert set(RESTART_ALERTS) <= {rule.get("alert") for rule in rules}


@pytest.mark.e2e
def test_it_fits_a_terminal(running: Running, fits: Callable[..., None]) -> None:
    """But for the command that ends it, and however long the reason is."""
    why = "a switch of rack 7 is replaced, " * 6
    fits(lambda: running.silence("a-run-with-a-long-name", "--for", "20m", "--why", why, "--planned-restart"), "  tach")
    fits(lambda: running.silence("--list"))
