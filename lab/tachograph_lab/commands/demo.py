"""The demo: a real training job on this machine, five faults, and the pages that they bring.

`tachograph-lab demo` ends with status 0 only if every fault brought its page, naming the right culprit, and nothing
else paged. A page that came after its budget is shown as late, with the machine's load: time is a promise of the rules
on a machine that has some to spare.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tachograph.signals import signals_as_exit
from tachograph_lab import binaries
from tachograph_lab.checkout import CheckoutError, root
from tachograph_lab.demo.demo_run import RANKS, DemoRun
from tachograph_lab.demo.demo_scenarios import FIRST_RUN, SCENARIOS
from tachograph_lab.demo.launch import launch
from tachograph_lab.demo.screen import Screen
from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import Pager
from tachograph_lab.processes import ProcessError, stop_recorded

HEALTHY_SECONDS = 30.0
"""Long enough for the rules to know the run's usual step and for the loss detector to know its usual loss."""

PAGES_FILE = "pages.jsonl"
SUMMARY_FILE = "summary.json"
SUBJECT = f"""\
{RANKS} ranks train a small transformer on the source text of Python's standard library (PyTorch DDP, gloo, CPU).
Each fault is real, and each page went the whole way: rank → exporter → Prometheus → Alertmanager → here."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with these command-line arguments; return 0 if all was paged as it must be."""
    options = _parse(arguments)
    try:
        folder = options.folder or root() / ".demo"
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder), signals_as_exit():
            left = stop_recorded(folder)
            if options.stop:
                print(f"stopped {', '.join(left)}" if left else "nothing was left running")
                return 0
            return _play(folder, options)
    except (binaries.BinariesUnavailable, CheckoutError, ProcessError, _Busy) as error:
        print(f"tachograph: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tachograph: interrupted, everything is stopped", file=sys.stderr)
        return 130


def _play(folder: Path, options: argparse.Namespace) -> int:
    began = time.monotonic()
    scenarios = [scenario for scenario in SCENARIOS if options.only in (None, scenario.fault.kind)]
    with Screen() as screen, Pager() as pager:
        screen.title("Tachograph demo", SUBJECT)
        if options.only is None:
            screen.note("it takes about five minutes")
        screen.waiting("Prometheus, Alertmanager, node_exporter and the exporter to start")
        with Stack(folder, pager.url, suite=options.suite, keep=options.keep) as stack:
            screen.note(f"{stack.description()}, ready in {time.monotonic() - began:.1f} s")
            screen.note(f"in a browser, the ranks and who is late: {stack.url('exporter')}/")
            if stack.simulated_gpus:
                screen.note(f"no GPU here: the hardware panel shows {stack.simulated_gpus} simulated GPUs")
            story = DemoRun(stack, pager, screen)
            story.tell(scenarios, options.healthy)
            extra = story.surplus()
            if options.keep:
                _leave_running(stack, pager)
        screen.waiting("")
        screen.summary(story.results, extra)
    load = os.getloadavg()[1]
    good = not extra and not any(result.fault for result in story.results)
    summary = {
        "ok": good,
        "seconds": round(time.monotonic() - began, 1),
        "load": round(load, 1),
        "results": [result.summary() for result in story.results],
        "surplus": [asdict(page) for page in extra],
        "pages": [asdict(page) for page in pager.pages()],
    }
    (folder / SUMMARY_FILE).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    verdict = "every fault paged, nothing else did" if good else "not as it must be"
    if late := sum(result.late for result in story.results):
        verdict += f"; {late} late, at a load of {load:.1f} on {os.cpu_count()} cores"
    screen.note(f"{verdict}; {summary['seconds']:.0f} s; details in {folder / SUMMARY_FILE}", good)
    if options.keep:
        stop = f"{shlex.quote(os.path.relpath(sys.executable))} -m tachograph_lab demo --stop"
        stop += f" --folder {shlex.quote(str(options.folder))}" if options.folder else ""
        screen.left_running({part: stack.url(part) for part in stack.ports}, folder / PAGES_FILE, stop)
    return 0 if good else 1


def _leave_running(stack: Stack, pager: Pager) -> None:
    """Start a fresh healthy job, and a pager that outlives this process on the same port."""
    pager.close()
    command = [sys.executable, "-m", "tachograph_lab.pager", str(pager.port), str(stack.folder / PAGES_FILE)]
    stack.children.start("pager", command)
    launch(stack.children, FIRST_RUN, RANKS, stack.socket)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tachograph-lab demo", description="A real job, five faults, and the pages they bring."
    )
    parser.add_argument("--keep", action="store_true", help="leave the stack and a fresh healthy job running")
    parser.add_argument("--stop", action="store_true", help="stop what an earlier --keep left running, and end")
    parser.add_argument("--folder", type=lambda text: Path(text).resolve(), help="where everything is written (.demo)")
    parser.add_argument(
        "--suite", default=binaries.SYSTEM, help="whose Prometheus and Alertmanager: system, or a Debian code name"
    )
    parser.add_argument("--healthy", type=float, default=HEALTHY_SECONDS, help="seconds of healthy training at first")
    parser.add_argument("--only", choices=[scenario.fault.kind for scenario in SCENARIOS], help="give one fault only")
    return parser.parse_args(arguments)


class _Busy(Exception):  # noqa: N818
    """Another demo uses the folder."""


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _Busy(f"another demo runs in {folder}; wait for it, or give --folder") from error
        yield
