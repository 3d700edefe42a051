"""Recovery of examples/resilient under `tachograph supervise --mode act`, each kind of fault five times or six.

1. A rank gets SIGKILL, or hangs: how long until the run makes a step again, less what loading takes (the command's
   start, PyTorch's import, the checkpoint).
2. A corrupt batch: the run is rolled back and leaves it out. Its loss on text that is held out is compared with that of
   a run without the batch, and with that of one that trains on without a supervisor.

The policy is the default one with a larger budget of restarts. `--doc` writes the tables of docs/evidence/recovery.md.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tachograph import diagnosis
from tachograph.findings.limits import LIMITS
from tachograph.text.humanize import duration
from tachograph.watch.private_exporter import private_exporter
from tachograph_lab.demo.resilient_run import Recovery, ResilientRun, StepMade, start_alone, start_supervised
from tachograph_lab.processes import Children, ProcessError
from tachograph_lab.table import between, markdown, save, show

DOCUMENT = Path(__file__).parent.parent / "docs" / "evidence" / "recovery.md"
BEGIN, END = "<!-- written by bench/recovery.py --doc -->", "<!-- end -->"
KILL_SECONDS, HANG_SECONDS = 15.0, 30.0
"""What a restart may take: after a kill, and after the limit of a hang; loading comes on top."""

HANG_LIMIT = LIMITS["hang_seconds"].default or 0.0

BAD_BATCH_SHARE = 0.01
"""By how much the loss may differ from that of a run without the bad batch."""

AT = (30, 35, 40, 45, 50)
BAD_AT = (100, 120, 160, 200, 240, 280)
BAD_OPTIONS = ("--pace", "0.25", "--clipping", "inf")
MOST_SECONDS = 900.0


def awaited(run: ResilientRun, is_over: Callable[[], bool]) -> None:
    """Wait until it is over, or the run has ended; raise ProcessError where that takes too long."""
    deadline = time.monotonic() + MOST_SECONDS
    while run.process.running and not is_over():
        if time.monotonic() > deadline:
            raise ProcessError(f"{run.folder} takes too long:\n{run.process.tail(20)}")
        time.sleep(0.5)


def step_seconds(steps: Sequence[StepMade]) -> float:
    """Return the usual time between two steps of one attempt."""
    return statistics.median(after.time - before.time for before, after in pairwise(steps))


def restarted(kind: str, at: int, folder: Path, socket: Path) -> dict[str, Any]:
    """Return how a run recovers from a killed or a hanging rank."""
    fault = f"{kind}@{at}"
    with Children(folder / "logs") as children:
        run = start_supervised(children, folder / fault, fault, socket, "--pace", "0.1", "--fault", fault)
        awaited(run, lambda: any(one.is_over for one in run.recoveries()))
        (one,) = run.recoveries() or [Recovery(run.faults()[0])]
        steps = [step for step in run.steps() if step.attempt == 0]
    limit = KILL_SECONDS
    if kind == "hang":
        limit = HANG_LIMIT + diagnosis.HANG_STEPS * step_seconds(steps) + HANG_SECONDS
    return {
        "fault": kind, "at": at, "found by": one.trigger or "-", "action": one.action or "-",
        "seconds": one.seconds - one.load_seconds, "limit": limit, "loading": one.load_seconds,
        "steps lost": one.lost_steps, "within": one.seconds - one.load_seconds <= limit,
    }  # fmt: skip


def spoilt(at: int, clean: float, folder: Path, socket: Path) -> dict[str, Any]:
    """Return how a run recovers from a bad batch, and what becomes of the same one without a supervisor."""
    fault = f"spike@{at}"
    with Children(folder / "logs") as children:
        run = start_supervised(children, folder / fault, fault, socket, *BAD_OPTIONS, "--fault", fault)
        alone = start_alone(children, folder / f"alone-{at}", f"alone-{at}", *BAD_OPTIONS, "--fault", fault)
        awaited(run, lambda: False)
        awaited(alone, lambda: False)
    last = run.recoveries()[-1] if run.faults() else None
    supervised, unsupervised = run.validation(), alone.validation()
    return {
        "at": at, "action": "-" if last is None else last.action or "-",
        "seconds": math.nan if last is None else last.seconds, "steps lost": 0 if last is None else last.lost_steps,
        "supervised": supervised, "to clean": supervised / clean - 1,
        "unsupervised": unsupervised, "it to clean": unsupervised / clean - 1,
        "within": abs(supervised / clean - 1) <= BAD_BATCH_SHARE,
    }  # fmt: skip


def undisturbed(folder: Path) -> float:
    """Return the loss of a run that nothing happens to."""
    with Children(folder / "logs") as children:
        run = start_alone(children, folder / "clean", "clean", *BAD_OPTIONS)
        awaited(run, lambda: False)
    return run.validation()


def document(restarts: Sequence[dict[str, Any]], bad: Sequence[dict[str, Any]], clean: float, load: float) -> None:
    """Write the tables between the markers of docs/evidence/recovery.md."""
    rows = []
    for kind in ("kill", "hang"):
        mine = [row for row in restarts if row["fault"] == kind]
        seconds, loading = sorted(row["seconds"] for row in mine), sorted(row["loading"] for row in mine)
        rows.append([
            kind, f"{sum(row['within'] for row in mine)} of {len(mine)}", f"{min(row['limit'] for row in mine):.0f} s",
            f"{seconds[0]:.1f} / {statistics.median(seconds):.1f} / {seconds[-1]:.1f} s",
            f"{loading[0]:.1f} to {loading[-1]:.1f} s", f"{max(row['steps lost'] for row in mine)}",
        ])  # fmt: skip
    heads = ["fault", "within the limit", "limit", "a step again after (least / median / most)", "and loading"]
    lines = ["", *markdown([*heads, "steps made again, at most"], rows), ""]
    heads = ["bad batch at step", "a step again after", "steps lost", "loss", "to clean", "unsupervised", "to clean"]
    lines += markdown(heads, ([
        str(row["at"]), "not found" if row["action"] == "-" else duration(row["seconds"]), str(row["steps lost"]),
        f"{row['supervised']:.4f}", f"{row['to clean']:+.2%}", f"{row['unsupervised']:.2f}",
        f"{row['it to clean']:+.0%}",
    ] for row in bad))  # fmt: skip
    within = sum(row["within"] for row in bad)
    lines += ["", f"Without the bad batch the loss is {clean:.4f}; {within} of {len(bad)} are within 1 % of that.",
              f"The machine had {os.cpu_count()} cores, and a load of {load:.0f} at the end.", ""]  # fmt: skip
    DOCUMENT.write_text(between(DOCUMENT.read_text(encoding="utf-8"), BEGIN, END, lines), encoding="utf-8")


def main() -> int:
    """Measure, print and write; return 1 if a limit is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=6, help="how often each fault is made, at most")
    parser.add_argument("--doc", action="store_true", help="write the tables into docs/evidence/recovery.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, private_exporter() as exporter:
        folder = Path(name)
        restarts = []
        for kind in ("kill", "hang"):
            for at in AT[: given.times]:
                restarts.append(restarted(kind, at, folder, exporter.socket))
                print(restarts[-1], flush=True)
        clean = undisturbed(folder)
        bad = []
        for at in BAD_AT[: given.times]:
            bad.append(spoilt(at, clean, folder, exporter.socket))
            print(bad[-1], flush=True)
    load = os.getloadavg()[2]
    show("A killed and a hanging rank: seconds until a step is made again, less loading", restarts)
    show("A bad batch: loss on what is held out", bad, note=f"without it: {clean:.4f}; load {load:.0f}")
    save("recovery", {"restarts": restarts, "bad_batches": bad, "clean": clean, "load": load})
    if given.doc:
        document(restarts, bad, clean, load)
    return 0 if all(row["within"] for row in (*restarts, *bad)) else 1


if __name__ == "__main__":
    sys.exit(main())
