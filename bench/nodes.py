"""Many nodes for real, and every part failing: four nodes, two cells and a level above, each on a host of its own.

    bench/nodes.py [--only NAME …] [--doc] [--suite RELEASE]

Each host is a network namespace: nodes with a real exporter, node_exporter and two ranks that meet in every step; a
Prometheus for each cell, two above, and two Alertmanagers, with the files that `tachograph bundle --scale-out` writes.
Every fault of nodes_stories.py gets a fleet of its own, and all that was received is compared with what had to be.

Runs as root, in namespaces of its own (nodes_network.py): nothing outside is touched, and nothing is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import nodes_upgrade
from nodes_network import OWN_ADDRESS, Network, NetworkError, check, start_alone
from nodes_scene import CALM_SECONDS, Scene
from nodes_stories import STORIES, StoryOfNodes
from tachograph.processes.signals import signals_as_exit
from tachograph.servers.prometheus_api import PrometheusError
from tachograph_lab import binaries
from tachograph_lab.pager import PagedAlert, Pager
from tachograph_lab.processes import ProcessError
from tachograph_lab.table import OUT, between, markdown, save, show

DOCUMENT = Path(__file__).parent.parent / "docs" / "evidence" / "nodes.md"
BEGIN, END = "<!-- written by bench/nodes.py --doc -->", "<!-- end -->"

FOLDER_PREFIX = "tachograph-nodes-"
STORY_SECONDS = 900.0
"""The most that a story may take."""
NAME, RESULT = "nodes", "result.json"
HEADS = ("what fails", "what people received", "after, s", "load", "verdict")


@dataclass(frozen=True)
class Result:
    """What people received after a fault."""

    name: str
    received: Sequence[Mapping[str, Any]] = ()
    """Alert, receiver and labels of each, and the seconds from the fault on."""
    times_sent: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    faults: Sequence[str] = ()
    """What else was wrong; why the bench itself failed, if it did."""
    load: float = 0.0
    """The machine's load average at the end."""

    @property
    def story(self) -> StoryOfNodes:
        """The fault."""
        return STORIES[self.name]

    @property
    def wrong(self) -> str:
        """What is not as it must be, empty if all is."""
        found = [_said(one) for one in self.received]
        wanted = [_said(asdict(one)) for one in self.story.expect]
        late = [one["after"] for one in self.received if self.story.within and one["after"] > self.story.within]
        return "; ".join(
            [
                *self.faults,
                *[f"not received: {each}" for each in wanted if each not in found],
                *[f"not wanted: {each}" for each in found if each not in wanted],
                *[f"{each} twice" for each in {*found} if found.count(each) > 1],
                *[f"{name} sent {times} times" for name, times in self.times_sent.items() if times > 1],
                *[f"later than {self.story.within:.0f} s" for _ in late],
            ]
        )

    def cells(self) -> list[str]:
        """Return the row of the table."""
        return [
            self.story.words,
            "; ".join(f"{_said(one)}, once" for one in self.received) or "nothing",
            ", ".join(f"{one['after']:.0f}" for one in self.received) or "–",
            f"{self.load:.0f}" if self.load else "–",
            self.wrong or "as it must be",
        ]


def _said(one: Mapping[str, Any]) -> str:
    named = [one[name] for name in ("instance", "cell") if one[name]]
    receiver = one.get("receiver", "page")
    words = [one["alert"], *named, *[f"rank {one['rank']}"] * bool(one["rank"])]
    return " ".join([*words, *[f"({receiver})"] * (receiver != "page")])


def play(name: str, folder: Path, suite: str) -> Result:
    """Play one story; only within namespaces of our own."""
    story = STORIES[name]
    pages: list[PagedAlert] = []
    with contextlib.ExitStack() as stack:
        network = Network(story.fleet.hosts, folder)
        pager = stack.enter_context(Pager(host=OWN_ADDRESS))
        fleet = story.fleet(network, folder, pager.url, suite=suite)
        fleet.small_disk = story.small_disk
        stack.enter_context(fleet)
        scene = Scene(fleet, pager)
        try:
            fleet.wait_seen()
            scene.pause(CALM_SECONDS)
            story.play(scene)
        except (ProcessError, NetworkError, PrometheusError) as error:
            scene.faults.append(str(error))
        scene.faults += [f"{name} was ended" for name in scene.ended()]
        pages = scene.received()
        return Result(
            name,
            [_row(one, scene.struck) for one in pages],
            {one.alert: pager.times_sent(one.alert) for one in pages},
            scene.notes,
            scene.faults,
        )


def _row(one: PagedAlert, struck: float) -> dict[str, Any]:
    labels = {name: one.labels.get(name, "") for name in ("instance", "rank", "cell")}
    text = one.annotations.get("description", "")
    return {"alert": one.alert, "receiver": one.receiver, **labels, "after": one.time - struck, "text": text}


def played_alone(name: str, suite: str, keep: Path | None) -> Result:
    """Play a story in namespaces of its own, and return its result."""
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER_PREFIX}{os.getpid()}-") as place:
        folder = Path(place)
        process = start_alone([__file__, "--inside", str(folder), "--only", name, "--suite", suite])
        try:
            process.wait(STORY_SECONDS)
        except subprocess.TimeoutExpired:
            return Result(name, faults=[f"not over after {STORY_SECONDS:.0f} s"])
        finally:
            process.kill()
            process.wait()
            if keep:
                _keep(folder, keep / name.replace(" ", "-"))
        if not (folder / RESULT).exists():
            return Result(name, faults=[f"ended with status {process.returncode}"])
        found = Result(**json.loads((folder / RESULT).read_text(encoding="utf-8")))
        return replace(found, load=os.getloadavg()[0])


def _keep(folder: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("*.log"), *folder.glob(RESULT)]:
        shutil.copy(path, kept)


def clear_dead() -> None:
    """Remove the folders of benches that were killed; all else of theirs ended with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        pid = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if folder.owner() == "root" and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def earlier() -> dict[str, Result]:
    """Return the last result of each story, so that some of them can be played again."""
    path = OUT / f"{NAME}.json"
    found = json.loads(path.read_text(encoding="utf-8"))["stories"] if path.exists() else []
    return {one["name"]: Result(**one) for one in found if one["name"] in STORIES}


def report(results: Sequence[Result]) -> list[str]:
    """Return the table as Markdown."""
    return markdown(HEADS, [one.cells() for one in results])


def main() -> int:
    """Play the stories, print the table, write bench/out/nodes.json; return 1 unless all is as it must be.

    The file and the document keep the last results of stories that are not played.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(STORIES), default=list(STORIES), metavar="NAME")
    parser.add_argument("--suite", default=binaries.SYSTEM, help="the release whose Prometheus and Alertmanager run")
    parser.add_argument("--doc", action="store_true", help=f"write the table into {DOCUMENT.name}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the logs of all programs there")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        with signals_as_exit():
            result = play(options.only[0], options.inside, options.suite)
        (options.inside / RESULT).write_text(json.dumps(asdict(result)), encoding="utf-8")
        return 0
    try:
        check()
        binaries.find(options.suite)
        if "upgrade" in options.only:
            nodes_upgrade.prepare()
    except (NetworkError, binaries.BinariesUnavailable) as error:
        parser.error(str(error))
    clear_dead()
    known = earlier()
    with signals_as_exit():
        for name in options.only:
            known[name] = one = played_alone(name, options.suite, options.keep)
            results = [known[name] for name in STORIES if name in known]
            save(NAME, {"stories": [asdict(one) for one in results]})
            print(f"{time.strftime('%H:%M:%S')} {name}: " + " | ".join(one.cells()[1:]), flush=True)
    show("Many nodes", [dict(zip(HEADS, one.cells(), strict=True)) for one in results if one.name in options.only])
    if options.doc:
        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(between(text, BEGIN, END, report(results)), encoding="utf-8")
    return 1 if any(known[name].wrong for name in options.only) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
