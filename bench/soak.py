"""A soak: one exporter under everything at once, for as long as one likes; nothing may grow, and nothing go missing.

    bench/soak.py [--minutes M] [--doc]

64 real ranks make ten steps a second each, 16 of which are killed, fail or finish again and again and return; other
users attack one way after the other (hostile_attacks.py); a GPU's driver hangs for 20 s every two minutes; four
scrapers read their pages slowly. The exporter has eight GPUs of the fake library, 1,024 descriptors and 512 MB.

At every end each rank's own count of steps must be what the page shows. A page is scraped once a second. What grows is
measured at quiet moments, when no attack runs, in thirds of the time. Runs as root, because attackers are other users.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hostile_node import DESCRIPTORS, Node
from hostile_scraper import Scraper
from observe import children, resident_mb
from soak_load import RANKS, Attackers, Driver, Ranks, SlowReaders
from soak_rank import UID
from tachograph.processes.signals import signals_as_exit
from tachograph_lab.fake_nvml import library
from tachograph_lab.processes import Children
from tachograph_lab.table import between, markdown, quantile, save, show

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "evidence" / "soak.md"
BEGIN, END = "<!-- written by bench/soak.py --doc -->", "<!-- end -->"

GPUS = 8
DATA_BYTES = 512 << 20
PERIOD = 1.0
START_SECONDS, END_SECONDS = 600.0, 240.0
"""For all ranks to be there, and to have stood still."""
WARM_UP = 0.3
"""The share of the time after which something counts as growing: before, tables and the allocator's pools fill.

In half an hour that is a whole round of attacks, each of which fills something the first time.
"""

GROWN_MB, GROWN_DESCRIPTORS, GROWN_TASKS, GROWN_BLOCKS = 3.0, 8, 4, 0.05
SLOWER = 2.0
"""The limits: growth from the first third to the last, of blocks as a share, and how much longer a scrape's 99th
percentile may be."""
RETENTION_SECONDS = 120
"""How long the exporter keeps a rank that ended.

By default it is a quarter of an hour, longer than a third of the soak: what is kept on purpose would look like a leak.
"""


@dataclass
class Looks:
    """What was seen at quiet moments, each with its time since the beginning."""

    scrapes: list[tuple[float, float]] = field(default_factory=list)
    resident: list[tuple[float, float]] = field(default_factory=list)
    descriptors: list[tuple[float, float]] = field(default_factory=list)
    threads: list[tuple[float, float]] = field(default_factory=list)
    tasks: list[tuple[float, float]] = field(default_factory=list)
    blocks: list[tuple[float, float]] = field(default_factory=list)

    def third(self, kind: str, number: int, whole: float) -> list[float]:
        """Return the values of a third of what follows the warm-up."""
        first = WARM_UP * whole
        length = (whole - first) / 3
        return [
            value for at, value in getattr(self, kind) if first + number * length <= at < first + (number + 1) * length
        ]

    def slope(self, kind: str, whole: float) -> float:
        """Return the growth per minute after the warm-up, by least squares."""
        kept = [(at / 60, value) for at, value in getattr(self, kind) if at > WARM_UP * whole]
        return statistics.linear_regression(*zip(*kept, strict=True)).slope


@dataclass
class Soak:
    """The result."""

    minutes: float
    load: str
    looks: Looks
    all_scrapes: Sequence[float]
    lost_scrapes: int
    ranks: Mapping[str, Any]
    attacks: int
    hangs: int
    hangs_seen: int
    slow_begun: int
    slow_pages: int
    ended: bool

    @property
    def seconds(self) -> float:
        """Its duration."""
        return 60 * self.minutes

    def rows(self) -> list[dict[str, str]]:
        """Return the table: each quantity in thirds, and whether the last differs too much from the first."""
        kinds = {
            "scrape p50, ms": ("scrapes", 0.5, 1e3), "scrape p99, ms": ("scrapes", 0.99, 1e3),
            "resident, MB": ("resident", 0.5, 1.0), "descriptors": ("descriptors", 0.5, 1.0),
            "threads": ("threads", 0.5, 1.0), "asyncio tasks": ("tasks", 0.5, 1.0),
            "blocks of memory, least": ("blocks", 0.0, 1.0),
        }  # fmt: skip
        found = []
        for words, (kind, share, unit) in kinds.items():
            thirds = [unit * quantile(self.looks.third(kind, number, self.seconds), share) for number in range(3)]
            digits = 0 if kind in ("descriptors", "threads", "tasks", "blocks") else 1
            cells = [f"{value:,.{digits}f}" for value in thirds]
            found.append({"at quiet moments": words, "first third": cells[0], "second": cells[1], "last": cells[2]})
        return found

    def faults(self) -> list[str]:
        """Return what grew, went missing or ended."""
        looks = self.looks

        def grown(kind: str) -> float:
            first, last = (statistics.median(looks.third(kind, number, self.seconds)) for number in (0, 2))
            return float(last - first)

        first, last = (quantile(looks.third("scrapes", number, self.seconds), 0.99) for number in (0, 2))
        # The least: between attacks, ranks of the last ones are still kept, more or fewer of them.
        blocks = min(looks.third("blocks", 2, self.seconds)) / min(looks.third("blocks", 0, self.seconds)) - 1
        return [
            *self.ranks["wrong"],
            *["the exporter ended"] * self.ended,
            *[f"{self.hangs - self.hangs_seen} hangs of the driver were not shown"] * (self.hangs_seen < self.hangs),
            *[f"memory grew by {grown('resident'):.1f} MB"] * (grown("resident") > GROWN_MB),
            *[f"blocks of memory grew by {100 * blocks:.0f} %"] * (blocks > GROWN_BLOCKS),
            *[f"{grown('descriptors'):.0f} descriptors more"] * (grown("descriptors") > GROWN_DESCRIPTORS),
            *[f"{grown('tasks'):.0f} tasks more"] * (grown("tasks") > GROWN_TASKS),
            *[f"{grown('threads'):.0f} threads more"] * (grown("threads") > GROWN_TASKS),
            *[f"scrape p99 {1e3 * first:.0f} ms, later {1e3 * last:.0f} ms"] * (last > SLOWER * first),
        ]

    def lines(self) -> list[str]:
        """Return the report as Markdown."""
        rows = self.rows()
        ranks = self.ranks
        counted = "all exact" if not ranks["wrong"] else f"{len(ranks['wrong'])} wrong"
        return [
            f"{self.minutes:.0f} minutes. {self.load}",
            "",
            *markdown(list(rows[0]), [list(row.values()) for row in rows]),
            "",
            f"- {ranks['deaths']} ends of ranks; {ranks['compared']} counts of steps compared, {counted}.",
            f"- {self.attacks} attacks of 12 s; {self.hangs} hangs of the driver, {self.hangs_seen} of which were"
            f" shown; {self.slow_begun} pages read slowly, {self.slow_pages} of them to the end.",
            f"- All scrapes, those during attacks included: p50 {1e3 * quantile(self.all_scrapes, 0.5):.0f} ms, p99 "
            f"{1e3 * quantile(self.all_scrapes, 0.99):.0f} ms; {self.lost_scrapes} of {len(self.all_scrapes)} lost.",
            f"- Memory: {1024 * self.looks.slope('resident', self.seconds):+.0f} KB a minute, by least squares.",
            f"- Verdict: {'; '.join(self.faults()) or 'nothing grew, nothing is missing'}.",
        ]


def start_exporter(own: Children, folder: Path, fake: library.FakeNvml) -> Node:
    """Start the exporter that counts, and return it once it serves."""
    options = [f"--socket={folder / 'rank.sock'}", "--web.listen-address=127.0.0.1:0", "--gpu.kmsg="]
    options += [f"--ranks.retention={RETENTION_SECONDS}s"]
    child = own.start(
        "exporter", [sys.executable, HERE / "soak_exporter.py", folder / "counts", *options], fake.environment()
    )
    resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    resource.prlimit(child.pid, resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    return Node(child.process, folder / "rank.sock", child.log)


def soak(minutes: float, folder: Path) -> Soak:
    """Run it all and return the result."""
    shared = folder / "counts-of-ranks"
    shared.mkdir()
    for place in (folder, shared):
        os.chown(place, UID, -1)
    fake = library.FakeNvml(library.build(folder / "nvml"), folder / "nvml-state", live=True)
    fake.state.count = GPUS
    before = os.getloadavg()[0]
    with Children(folder) as own:
        node = start_exporter(own, folder, fake)
        ranks = Ranks(own, node.socket, shared, seed=51)
        for rank in range(RANKS):
            ranks.start(rank)
        scraper = Scraper(node.port)
        _await_ranks(scraper)
        attackers, driver, slow = Attackers(own, node.socket, node.port), Driver(fake), SlowReaders(node.port)
        looks, times, lost = Looks(), [], 0
        began = time.monotonic()
        while (so_far := time.monotonic() - began) < 60 * minutes and node.process.poll() is None:
            now = time.monotonic()
            attackers.turn(now)
            took, text = scraper.scrape()
            driver.turn(text, now)
            times.append(took)
            lost += not text
            ranks.turn(text, now)
            if attackers.quiet(now) and text:
                _look(looks, so_far, took, node)
            time.sleep(max(0.0, PERIOD - (time.monotonic() - now)))
        ended = node.process.poll() is not None
        slow.stop()
        (shared / "stop").touch()
        if not ended:
            _compare_all(ranks, scraper)
        _read_counts(folder / "counts", looks, began, attackers)
    load = f"Load average {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores."
    counts = {"wrong": ranks.wrong, "compared": ranks.compared, "deaths": ranks.deaths}
    return Soak(
        minutes,
        load,
        looks,
        times,
        lost,
        counts,
        attackers.made,
        driver.hangs,
        driver.seen,
        slow.begun,
        slow.pages,
        ended,
    )


def _await_ranks(scraper: Scraper) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (seen := scraper.scrape()[1].count('state="running"} 1')) < RANKS:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{seen} of {RANKS} ranks are there after {START_SECONDS:.0f} s")
        time.sleep(PERIOD)


def _look(looks: Looks, at: float, took: float, node: Node) -> None:
    pid = node.process.pid
    status = Path(f"/proc/{pid}/status").read_text()
    looks.scrapes.append((at, took))
    looks.resident.append((at, resident_mb(children(pid))))
    looks.descriptors.append((at, len(os.listdir(f"/proc/{pid}/fd"))))  # noqa: PTH208 - only how many
    looks.threads.append((at, int(status.split("Threads:")[1].split()[0])))


def _compare_all(ranks: Ranks, scraper: Scraper) -> None:
    """Wait until all ranks have stood still and been compared."""
    deadline = time.monotonic() + END_SECONDS
    while ranks.living and time.monotonic() < deadline:
        ranks.turn(scraper.scrape()[1], time.monotonic(), over=True)
        time.sleep(PERIOD)
    if ranks.living:
        ranks.wrong.append(f"{ranks.living} ranks did not stand still within {END_SECONDS:.0f} s")


def _read_counts(path: Path, looks: Looks, began: float, attackers: Attackers) -> None:
    """Take the exporter's own counts of quiet moments; the monotonic clock is the same for all processes."""
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["time"] > began and attackers.quiet(one["time"]):
            looks.tasks.append((one["time"] - began, one["tasks"]))
            looks.blocks.append((one["time"] - began, one["blocks"]))


def main() -> int:
    """Soak, print the table, write bench/out/soak.json; return 1 if anything grew or is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--doc", action="store_true", help=f"write the result into {DOCUMENT.name}")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("must be run as root: the attackers and the ranks are different users")
    folder = Path(tempfile.mkdtemp(prefix="tachograph-soak-"))
    folder.chmod(0o755)  # other users reach the socket
    try:
        with signals_as_exit():
            result = soak(options.minutes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show("A soak", result.rows(), "; ".join(result.faults()) or "nothing grew, nothing is missing")
    save("soak", asdict(result))
    if options.doc:
        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(between(text, BEGIN, END, result.lines()), encoding="utf-8")
    return 1 if result.faults() else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
