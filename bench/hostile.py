"""The cost of attacks on one node: a real exporter, attackers of other users, and a witness that must not be affected.

Each attack of hostile_attacks.py runs against an exporter of its own with eight GPUs. Meanwhile a rank of another user
measures how late its state is applied (hostile_witness.py), a scraper how long scrapes take (hostile_scraper.py), and
the node's memory, log and descriptors are observed from outside. It must be back to normal within a minute afterwards.

Runs as root, because attackers and witness are other users; it uses only loopback and a Unix socket in a temporary
folder. With more than one core the attackers run on one and the exporter on another: a node has dozens. Exporter and
observers run at nice −10, so that other programs on the machine matter little. Dead ranks are kept for 15 s longer than
the attack instead of 15 minutes, so that the minute after it shows that they are dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostile_attacks import ATTACKS
from hostile_node import Look, Node, node, stand_in
from tachograph_lab.table import between, quantile, save, show

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs/evidence/attacks.md"
BEGIN, END = "<!-- begin: bench/hostile.py --doc -->", "<!-- end: bench/hostile.py --doc -->"

LATE_SECONDS = 1.0
SCRAPE_SECONDS = 0.05
RESIDENT_MB = 100.0
LOG_BYTES = 10_240.0
SAMPLES = 10_000
RECOVERY_SECONDS = 60.0
"""The limits; docs/security.md has the reason for each."""

SERIES_SLACK = 10
"""Series of the exporter's own that an attack may leave behind: reasons that were counted for the first time."""

DESCRIPTOR_SLACK = 8


@dataclass(frozen=True)
class Result:
    """The cost of one attack."""

    name: str
    achieved: Mapping[str, float]
    witness: Mapping[str, Any]
    """The output of hostile_witness.py."""
    scraper: Mapping[str, Any]
    """The output of hostile_scraper.py."""
    resident_mb: float
    log_rate: float
    """Bytes per second."""
    recovered: float | None
    """Seconds until the node was as before, None if it was not within RECOVERY_SECONDS."""
    missing: Sequence[str]
    """The differences that remained at the end."""

    def cells(self) -> dict[str, tuple[str, bool]]:
        """Return each figure as text, and whether it is within its limit."""
        seen, scraped = self.witness, self.scraper
        late, p99 = max(seen["late"]), quantile(scraped["times"], 0.99)
        others = [
            *[f"{seen['lost']} connections lost"] * bool(seen["lost"]),
            *[f"refused {len(seen['refusals'])} times: {each}" for each in seen["refusals"][:1]],
            *[f"dead rank missing on {scraped['forgotten']} pages"] * bool(scraped["forgotten"]),
            *[f"new rank took {seen['joined']:.1f} s"] * (seen["joined"] > LATE_SECONDS),
        ]
        lost = f", {scraped['lost']} lost" if scraped["lost"] else ""
        fault = f": {scraped['fault']}" if scraped["fault"] else ""
        after = f"{self.recovered:.0f} s" if self.recovered is not None else "not: " + ", ".join(self.missing)
        return {
            "late, p100": (f"{late * 1e3:,.0f} ms", late <= LATE_SECONDS),
            "scrape p50": (f"{quantile(scraped['times'], 0.5) * 1e3:,.0f} ms", True),
            "scrape p99": (f"{p99 * 1e3:,.0f} ms{lost}", p99 <= SCRAPE_SECONDS),
            "probes lost": (f"{scraped['probes lost']} of {scraped['probes']}", True),
            "RSS": (f"{self.resident_mb:.0f} MB", self.resident_mb <= RESIDENT_MB),
            "log": (f"{self.log_rate / 1024:.1f} KB/s", self.log_rate <= LOG_BYTES),
            "others' ranks": ("; ".join(others) or "kept", not others),
            "samples": (f"{scraped['samples']:,}{fault}", not fault and scraped["samples"] <= SAMPLES),
            "as before": (after, self.recovered is not None),
        }

    @property
    def held(self) -> bool:
        """Whether every figure is within its limit."""
        return all(within for _, within in self.cells().values())


@contextmanager
def observer(name: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start one of the observers and wait until it is ready; stop it afterwards."""
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name} was not ready: exit status {process.wait(10)}")
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def measure(name: str, seconds: float | None, library: Path | None) -> Result:
    """Run one attack and return its cost."""
    lasts = min(ATTACKS[name].seconds, seconds or ATTACKS[name].seconds)
    cores = sorted(os.sched_getaffinity(0))
    own, theirs = (cores[0], cores[-1]) if len(cores) > 1 else (None, None)
    with ExitStack() as stack:
        target = stack.enter_context(node(library, lasts + 15, own))
        witness = stack.enter_context(observer("hostile_witness.py", target.socket, lasts))
        before = _settled(target)
        scraper = stack.enter_context(observer("hostile_scraper.py", target.port, lasts))
        log = target.log_bytes()
        for each in (witness, scraper):
            print("go", file=each.stdin, flush=True)
        achieved, resident = _attack(target, name, lasts, theirs)
        log_rate = (target.log_bytes() - log) / lasts
        began = time.monotonic()
        scraped, seen = (json.loads(each.stdout.readline()) for each in (scraper, witness) if each.stdout is not None)
        return Result(name, achieved, seen, scraped, resident, log_rate, *_recovery(target, before, began))


def _settled(target: Node) -> Look:
    """Return the node's state once it shows the witness and has not grown for three seconds."""
    deadline = time.monotonic() + 30
    looks: list[Look] = []
    while time.monotonic() < deadline:
        if (look := target.look()) is not None:
            looks.append(look)
            if len(looks) > 3 and look.witness_runs and len({each.series for each in looks[-4:]}) == 1:
                return look
        time.sleep(1.0)
    raise RuntimeError(f"the exporter did not settle before the attack: {looks[-1:]}")


def _attack(target: Node, name: str, lasts: float, core: int | None) -> tuple[Mapping[str, float], float]:
    """Run the attackers to the end; return their output and the exporter's highest memory in the meantime."""
    command = [sys.executable, str(HERE / "hostile_attacks.py"), name, str(target.socket), str(target.port), str(lasts)]
    command += ["--core", str(core)] if core is not None else []
    attackers = [
        subprocess.Popen([*command, "--uid", str(uid)], stdout=subprocess.PIPE, text=True)
        for uid in ATTACKS[name].uids
    ]  # fmt: skip
    resident = 0.0
    end = time.monotonic() + lasts + 10
    try:
        while any(each.poll() is None for each in attackers) and time.monotonic() < end:
            resident = max(resident, target.resident_mb())
            time.sleep(0.25)
    finally:
        for each in attackers:
            each.kill()
    achieved: Counter[str] = Counter()
    for each in attackers:
        achieved.update(json.loads(each.communicate()[0] or "{}"))
    return achieved, resident


def _recovery(target: Node, before: Look, began: float) -> tuple[float | None, list[str]]:
    """Wait until the node is as before; return the seconds since the attack, or None and the differences."""
    while True:
        missing = _differences(before, target.look())
        after = time.monotonic() - began
        if not missing:
            return after, []
        if after > RECOVERY_SECONDS:
            return None, missing
        time.sleep(1.0)


def _differences(before: Look, now: Look | None) -> list[str]:
    """Return the differences between a node's state now and before the attack."""
    if now is None:
        return ["no answer"]
    return [
        *[f"scrape {now.scrape * 1e3:.0f} ms"] * (now.scrape > SCRAPE_SECONDS),
        *[f"{now.series:,} samples"] * (abs(now.series - before.series) > SERIES_SLACK),
        *[f"{now.descriptors:,} descriptors"] * (now.descriptors > before.descriptors + DESCRIPTOR_SLACK),
        *[f"{now.resident_mb:.0f} MB"] * (now.resident_mb > RESIDENT_MB),
        *["witness not running"] * (not now.witness_runs),
    ]


def _mark(cell: tuple[str, bool]) -> str:
    return cell[0] if cell[1] else f"{cell[0]} ✗"


def _achieved(result: Result) -> str:
    return ", ".join(f"{number:,.0f} {what}" for what, number in result.achieved.items() if number) or "–"


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the table for the terminal."""
    return [
        {"attack": one.name, "achieved": _achieved(one), **{key: _mark(cell) for key, cell in one.cells().items()}}
        for one in results
    ]


def tables(results: Sequence[Result], load: str) -> list[str]:
    """Return the table as Markdown, with units in the row of limits, without what is not held to one."""
    limits = {
        "late, p100": f"{LATE_SECONDS * 1e3:,.0f} ms",
        "scrape p99": f"{SCRAPE_SECONDS * 1e3:.0f} ms",
        "RSS": f"{RESIDENT_MB:.0f} MB",
        "log": f"{LOG_BYTES / 1024:.0f} KB/s",
        "others' ranks": "kept",
        "samples": f"{SAMPLES:,}",
        "as before": f"{RECOVERY_SECONDS:.0f} s",
    }
    found = [{head: _mark(cell) for head, cell in one.cells().items()} for one in results]
    for head in [head for head in limits if all(cells[head] == limits[head] for cells in found)]:
        load = f"In every row, {head}: {limits.pop(head)}. {load}"
    missed = any("✗" in figure for cells in found for figure in cells.values())
    lines = [
        f"{'✗: limit missed. ' if missed else ''}{load}",
        "",
        f"| attack, as tried | {' | '.join(limits)} |",
        "|---" * (1 + len(limits)) + "|",
        f"| limit | {' | '.join(limits.values())} |",
    ]
    for one, figures in zip(results, found, strict=True):
        cells = [f"`{one.name}`: {ATTACKS[one.name].words}"]
        for head, limit in limits.items():
            unit = limit.rpartition(" ")[2]
            cells.append(figures[head].removesuffix(f" {unit}").replace(f" {unit} ✗", " ✗"))
        lines.append("| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |")
    return lines


def document(text: str, lines: Sequence[str]) -> str:
    """Return the document with `lines` between its markers, which are appended if they are missing."""
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n## What an attack costs\n\n{BEGIN}\n{END}\n"
    return between(text, BEGIN, END, lines)


def main() -> int:
    """Run the attacks, print the table, write bench/out/hostile.json; return 1 if a limit was exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), default=list(ATTACKS), metavar="NAME")
    parser.add_argument("--seconds", type=float, help="maximum duration of each attack")
    parser.add_argument("--doc", action="store_true", help=f"write the table into {DOCUMENT.name}")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("must be run as root: the attackers and the witness are different users")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends
    before, results = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory(prefix="tachograph-hostile-nvml-") as folder:
        library = stand_in(Path(folder))
        for name in options.only:
            results.append(measure(name, options.seconds, library))
            print("  ".join(f"{key}: {text}" for key, text in rows(results[-1:])[0].items()), flush=True)
    load = f"Load average {before:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores."
    show("What an attack costs", rows(results), f"✗: limit missed. {load}")
    save("hostile", {"load": load, "attacks": [vars(one) for one in results]})
    if options.doc:
        text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else "# What an attack costs\n"
        DOCUMENT.write_text(document(text, tables(results, load)), encoding="utf-8")
    return 0 if all(one.held for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
