"""Pictures of the dashboards for docs/img, taken by Chromium from the viewer over a live simulated fleet.

    python grafana/preview/screenshots.py incident-3       half an hour: the incident is played, then looked at
    python grafana/preview/screenshots.py --prometheus URL --run NAME [--from T --to T] incident-3

The second form takes the pictures over a Prometheus that has already seen the incident.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tachograph.dashboards.bundle import BundleError, find
from tachograph.dashboards.server import Viewer
from tachograph.processes.signals import signals_as_exit
from tachograph_lab import binaries
from tachograph_lab.checkout import CheckoutError
from tachograph_lab.commands.replay import find as find_scenario
from tachograph_lab.live.watched_fleet import WatchedFleet, wait
from tachograph_lab.pager import PagedAlert, Pager
from tachograph_lab.processes import ProcessError
from tachograph_lab.scenario import load

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "img"
LARGEST = 250 * 1024
"""Bytes: a reader's page holds several of them."""
AFTER_PAGE_SECONDS = 60.0
"""How long the incident goes on before it is looked at: whoever is paged needs as long to sit down."""


@dataclass(frozen=True)
class Picture:
    """One PNG: the dashboard, how much of it, and what is chosen beside the run."""

    name: str
    uid: str
    height: int
    width: int = 1500
    mode: str = "dark"
    chosen: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Subject:
    """An incident, the alert that pages, and what is looked at when it has."""

    incident: str
    alert: str
    pictures: tuple[Picture, ...]


SUBJECTS = {
    "incident-3": Subject(
        "3",
        "MfuDropped",
        (
            Picture("incident-3", "tachograph-incident", 1200),
            Picture("fleet", "tachograph-fleet", 1000, mode="light"),
            Picture("incident-3-run", "tachograph-run", 1080),
            Picture("ranks", "tachograph-ranks", 1100),
            Picture("node", "tachograph-node", 950, chosen={"var-instance": "node-09"}),
            Picture("storage", "tachograph-storage", 800, mode="light"),
            Picture("monitoring", "tachograph-monitoring", 900),
        ),
    ),
    "incident-2": Subject(
        "2",
        "RunHung",
        (
            Picture("incident-2-run", "tachograph-run", 1080, mode="light"),
            Picture("incident-2-ranks", "tachograph-ranks", 950),
        ),
    ),
}


def visits(subject: Subject, viewer: str, run: str, span: tuple[str, str], folder: Path) -> list[dict[str, object]]:
    """Return what Chromium is to open and to save."""
    made: list[dict[str, object]] = []
    for one in subject.pictures:
        words = {"var-run": run, "from": span[0], "to": span[1], "refresh": "15m", "theme": one.mode}
        url = f"{viewer}/d/{one.uid}?{urllib.parse.urlencode(words | dict(one.chosen or {}))}"
        shot = str(folder / f"{one.name}.png")
        made.append({"url": url, "width": one.width, "height": one.height, "folded": True, "shot": shot})
    return made


def take(subject: Subject, prometheus: str, run: str, span: tuple[str, str], folder: Path) -> int:
    """Write the pictures of a subject; return 1 if one is too large or something went wrong on its page."""
    folder.mkdir(parents=True, exist_ok=True)
    with Viewer(("127.0.0.1", 0), find(), prometheus, frozenset()) as viewer:
        threading.Thread(target=viewer.serve_forever, daemon=True).start()
        asked = visits(subject, f"http://127.0.0.1:{viewer.server_address[1]}", run, span, folder)
        done = subprocess.run(
            ["node", HERE / "visit.mjs"], input=json.dumps(asked).encode(), capture_output=True, check=False
        )
        viewer.shutdown()
    if done.returncode:
        print(done.stderr.decode(), file=sys.stderr)
        return 1
    status = 0
    for one, seen in zip(subject.pictures, json.loads(done.stdout), strict=True):
        file = folder / f"{one.name}.png"
        wrong = [*seen["problems"], *filter(None, [seen["stopped"]]), *seen["notices"]]
        wrong += [f"{panel['key']}: {panel['failed']}" for panel in seen["panels"] if panel["failed"]]
        if not file.exists():
            wrong.append("no picture")
        elif (size := file.stat().st_size) > LARGEST:
            wrong.append(f"{size // 1024} KiB are too many")
        print(f"{file}: {'; '.join(wrong) or 'taken'}", flush=True)
        status |= bool(wrong)
    return status


def play(subject: Subject, folder: Path) -> int:
    """Play the incident in real time, and look when its page has come."""
    (path,) = find_scenario([subject.incident])[:1]
    scenario = load(path).live or load(path)
    with (
        tempfile.TemporaryDirectory(prefix="tachograph-") as scratch,
        Pager(record=_print_page) as pager,
        WatchedFleet(scenario, Path(scratch), pager.url) as watched,
    ):
        print(
            f"{scenario.title}: looked at when {subject.alert} pages, within {scenario.lasts / 60:.0f} min", flush=True
        )
        left = watched.announcement.epoch + scenario.lasts - time.time()
        if not pager.wait_for(lambda page: page.alert == subject.alert, left):
            print(f"{subject.alert} did not page", file=sys.stderr)
            return 1
        wait(watched.children.running, until=time.time() + AFTER_PAGE_SECONDS)
        return take(subject, watched.url("prometheus"), scenario.fleet.run, ("now-30m", "now"), folder)


def _print_page(page: PagedAlert) -> None:
    print(f"{page.receiver} {page.status}: {page.alert}", flush=True)


def main() -> int:
    """Take the pictures that are asked for; return the exit status."""
    parser = argparse.ArgumentParser(description="Pictures of the dashboards, for docs/img.")
    parser.add_argument("subjects", nargs="+", choices=sorted(SUBJECTS), metavar="SUBJECT", help=", ".join(SUBJECTS))
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder to write to (default: docs/img)")
    parser.add_argument("--prometheus", metavar="URL", help="one that has seen the incident, instead of playing it")
    parser.add_argument("--run", default="llama-120b", help="the run there (default: %(default)s)")
    parser.add_argument("--from", dest="start", default="now-30m", help="as in Grafana (default: %(default)s)")
    parser.add_argument("--to", dest="end", default="now", help="as in Grafana (default: %(default)s)")
    given = parser.parse_args()
    status = 0
    try:
        with signals_as_exit():
            for name in given.subjects:
                subject = SUBJECTS[name]
                if given.prometheus:
                    status |= take(subject, given.prometheus, given.run, (given.start, given.end), given.out)
                else:
                    status |= play(subject, given.out)
    except (BundleError, CheckoutError, ProcessError, binaries.BinariesUnavailable) as error:
        print(f"screenshots: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
