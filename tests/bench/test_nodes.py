"""The bench of many nodes: its verdicts, and its network, which is gone with the program that made it."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tachograph.servers.prometheus_api import TimeSeries
from tachograph_lab.pager import Pager
from tests.bench.conftest import BENCH


@pytest.fixture(scope="module")
def nodes() -> ModuleType:
    return importlib.import_module("nodes")


def page(alert: str = "NodeDown", *, after: float = 18.0, **labels: str) -> dict[str, Any]:
    found = {"instance": "node-3", "rank": "", "cell": "", **labels}
    return {"alert": alert, "receiver": "page", **found, "after": after, "text": ""}


def wrong(nodes: ModuleType, *pages: dict[str, Any], times: int = 1, faults: tuple[str, ...] = ()) -> str:
    sent = {one["alert"]: times for one in pages}
    return str(nodes.Result("node", pages, sent, faults=faults).wrong)


def test_one_page_in_time_is_as_it_must_be(nodes: ModuleType) -> None:
    """The right alert, once, with the right node."""
    assert wrong(nodes, page()) == ""


def test_each_way_to_be_wrong_is_named(nodes: ModuleType) -> None:
    """A page that is missing, another's, doubled, late, or only a ticket, and what the bench saw beside pages."""
    assert wrong(nodes) == "not received: NodeDown node-3"
    other = page(instance="node-1")
    assert wrong(nodes, other) == "not received: NodeDown node-3; not wanted: NodeDown node-1"
    assert wrong(nodes, page(), page("RunHung", rank="7")) == "not wanted: RunHung node-3 rank 7"
    assert wrong(nodes, page(), page()) == "NodeDown node-3 twice"
    assert wrong(nodes, page(), times=2) == "NodeDown sent 2 times"
    assert wrong(nodes, page(after=20.5)) == "later than 20 s"
    ticket = page() | {"receiver": "ticket"}
    assert wrong(nodes, ticket) == "not received: NodeDown node-3; not wanted: NodeDown node-3 (ticket)"
    assert wrong(nodes, page(), faults=("a counter fell",)) == "a counter fell"


def test_a_trouble_that_lasts_is_not_ended() -> None:
    """A replica above that saw nothing of a hang must not say that it is over; the watchdog is no page."""
    scene = importlib.import_module("nodes_scene").Scene
    with Pager() as pager:
        sent = [("page", "RunHung", "firing"), ("page", "NodeDown", "resolved"), ("watchdog", "Any", "firing")]
        for receiver, alert, status in sent:
            one = {"status": status, "labels": {"alertname": alert}, "annotations": {}, "startsAt": "then"}
            pager.accept(receiver, {"alerts": [{**one, "fingerprint": alert}]})
        seen = scene(None, pager)
        assert [one.alert for one in seen.received()] == ["RunHung"]
        assert seen.ended() == []
        over = {"status": "resolved", "labels": {"alertname": "RunHung"}, "annotations": {}, "startsAt": "then"}
        pager.accept("page", {"alerts": [{**over, "fingerprint": "RunHung"}]})
        assert seen.ended() == ["RunHung"]


def test_a_counter_that_falls_and_a_panel_that_empties_are_seen() -> None:
    """Panels that a new release no longer has are none."""
    upgrade = importlib.import_module("nodes_upgrade")
    rises, falls = (
        TimeSeries({"__name__": f"tachograph_run_{name}_total", "instance": "node-1"}, tuple(enumerate(values)))
        for name, values in (("steps", (1.0, 1.0, 7.0)), ("tokens", (5.0, 8.0, 7.0)))
    )
    assert upgrade.fallen([rises, falls]) == ["tachograph_run_tokens_total fell on node-1"]
    before = {"run: loss": True, "run: gone": True, "run: never": False, "run: rate": True}
    assert upgrade.lost_panels(before, {"run: loss": True, "run: never": False, "run: rate": False}) == ["run: rate"]


def test_without_its_programs_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line; as another user than root it says that first."""
    network = importlib.import_module("nodes_network")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(network.NetworkError, match=r"iproute2 nftables|run as root"):
        network.check()


TALK = """\
import socket, sys
mine, theirs, hears = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.bind((mine, 5000))
    own.settimeout(0.2)
    got = False
    for _ in range(15):
        try:
            own.sendto(b"hello", (theirs, 5000))
            got = own.recv(64) == b"hello" or got
        except OSError:
            pass
    sys.exit(0 if got == (hears == "hears") else 1)
"""
"""Sends to another host for three seconds, and says whether it heard it as expected."""

SCENE = """\
import pathlib, subprocess, sys
sys.path.insert(0, {bench!r})
from nodes_network import Network

folder = pathlib.Path({folder!r})
network = Network(("here", "there"), folder)

def talk(here, there):
    words = [sys.executable, str(folder / "talk.py")]
    both = [
        subprocess.Popen([*network.within(mine), *words, mine, theirs, hears])
        for mine, theirs, hears in (("here", "there", here), ("there", "here", there))
    ]
    assert [each.wait(90) for each in both] == [0, 0], (here, there)

talk("hears", "hears")
network.lose("there", 100, ["here"])
talk("nothing", "hears")
network.mend()
talk("hears", "hears")
network.cut("there")
talk("nothing", "nothing")
network.join("there")
talk("hears", "hears")
subprocess.Popen([*network.within("here"), "sleep", "1000"])
(folder / "done").touch()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")
@pytest.mark.skipif(not (shutil.which("ip") and shutil.which("nft")), reason="needs iproute2 and nftables")
def test_a_network_whose_parts_can_be_cut_one_way_or_both(tmp_path: Path) -> None:
    """Of all that it makes nothing is left, though it ends nothing itself."""
    network = importlib.import_module("nodes_network")
    (tmp_path / "talk.py").write_text(TALK, encoding="utf-8")
    scene = tmp_path / "scene.py"
    scene.write_text(SCENE.format(bench=BENCH, folder=str(tmp_path)), encoding="utf-8")
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    started = network.start_alone([str(scene)])
    assert started.wait(120) == 0
    assert (tmp_path / "done").exists()
    assert subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout == links
    assert str(tmp_path) not in Path("/proc/mounts").read_text(encoding="utf-8")
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 1000" not in running.splitlines()


def test_the_table_has_every_story(nodes: ModuleType) -> None:
    """Each with what must be received, so that a story without a page says so, too."""
    results = [nodes.Result(name) for name in nodes.STORIES]
    lines = nodes.report(results)
    assert len(lines) == len(nodes.STORIES) + 2
    assert sum("| nothing | – | – | as it must be |" in line for line in lines) == sum(
        not story.expect for story in nodes.STORIES.values()
    )
