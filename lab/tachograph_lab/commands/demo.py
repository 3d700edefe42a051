"""The demo: a real training job on this machine, five faults, and the pages that they cause.

With `--rl` three jobs learn by reinforcement at the same time, and each has one fault. With `--recovery` a supervisor
acts upon five faults of one training, and status 0 means that it recovered from all of them.

`tachograph-lab demo` exits with status 0 only if every fault caused its page, naming the right culprit, and nothing
else did. A page that came after its budget is shown as late, with the machine's load, and is no failure: the budgets
hold on a machine that is not overloaded.
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
from importlib.util import find_spec
from pathlib import Path

from tachograph.processes.signals import signals_as_exit
from tachograph.text.humanize import duration, plural, span
from tachograph_lab import binaries
from tachograph_lab.checkout import root
from tachograph_lab.commands.parser import LabParser, seconds
from tachograph_lab.demo import recovery
from tachograph_lab.demo.demo_run import DemoRun
from tachograph_lab.demo.demo_scenarios import FIRST_RUN, RL_SCENARIOS, SCENARIOS
from tachograph_lab.demo.launch import launch, launch_rl
from tachograph_lab.demo.screen import Screen
from tachograph_lab.demo.stack import Stack
from tachograph_lab.pager import Pager
from tachograph_lab.processes import ProcessError, stop_recorded
from tachograph_lab.scenario.definition import SCRAPE_SECONDS

PAGES_FILE = "pages.jsonl"
SUMMARY_FILE = "summary.json"
RANKS, RL_RANKS = 4, 2
RL_HEALTHY_SECONDS = 60.0
"""Twenty iterations or more: by then it is known how long generation takes."""

SUBJECT = f"""\
{RANKS} ranks train a small transformer on the source text of Python's standard library (PyTorch DDP, gloo, CPU).
Each fault is real, and each page takes the whole path: rank → exporter → Prometheus → Alertmanager → here."""
RL_SUBJECT = f"""\
Three runs of {RL_RANKS} ranks learn to repeat a digit (TRL's GRPO, examples/grpo/train.py, gloo, CPU). Their engines
are imitated: small servers with the names of vLLM's metrics. Faults and pages are real, as in `make demo`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo with these command-line arguments; return 0 if the right pages were received, and no others."""
    options = _parse(arguments)
    try:
        folder = options.folder or root() / ".demo"
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder), signals_as_exit():
            left = stop_recorded(folder)
            if options.stop:
                print(f"stopped {', '.join(left)}" if left else "nothing was running")
                return 0
            if options.recovery:
                with Screen() as screen:
                    return 0 if recovery.play(folder, screen) else 1
            return _play(folder, options)
    except (binaries.BinariesUnavailable, ProcessError, _FolderInUseError) as error:
        print(f"tachograph-lab demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tachograph-lab demo: interrupted, everything is stopped", file=sys.stderr)
        return 130


def _play(folder: Path, options: argparse.Namespace) -> int:
    began = time.monotonic()
    played = RL_SCENARIOS if options.rl else SCENARIOS
    scenarios = [scenario for scenario in played if options.only in (None, scenario.fault.kind)]
    with Screen() as screen, Pager() as pager:
        screen.title("Tachograph demo", RL_SUBJECT if options.rl else SUBJECT)
        if options.only is None and options.scrape is None:
            screen.note(f"this takes about {'eight' if options.rl else 'nine'} minutes")
        screen.waiting("starting Prometheus, Alertmanager, node_exporter and the exporter")
        intervals = {} if options.scrape is None else {"scrape": options.scrape, "evaluation": options.scrape}
        with Stack(folder, pager.url, suite=options.suite, keep=options.keep, intervals=intervals) as stack:
            screen.note(f"{stack.description()}, ready in {duration(time.monotonic() - began)}")
            screen.note(f"status page with every rank: {stack.url('exporter')}/")
            if stack.simulated_gpus:
                screen.note(
                    f"this machine has no GPU: the exporter shows {plural(stack.simulated_gpus, 'simulated GPU')}"
                )
            launcher, ranks = (launch_rl, RL_RANKS) if options.rl else (launch, RANKS)
            demo = DemoRun(
                stack, pager, screen, options.scrape or SCRAPE_SECONDS,
                ranks=ranks, start=lambda run: launcher(stack.children, run, ranks, stack.socket),
            )  # fmt: skip
            if options.rl:
                demo.run_at_once(scenarios, RL_HEALTHY_SECONDS if options.healthy is None else options.healthy)
            else:
                demo.run(scenarios, options.healthy)
            extra = demo.surplus()
            if options.keep:
                _leave_running(stack, pager)
        screen.waiting("")
        screen.summary(demo.results, extra)
    load = os.getloadavg()[1]
    good = not extra and not any(result.fault for result in demo.results)
    summary = {
        "ok": good,
        "seconds": round(time.monotonic() - began, 1),
        "load": round(load, 1),
        "results": [result.summary() for result in demo.results],
        "surplus": [asdict(page) for page in extra],
        "pages": [asdict(page) for page in pager.pages()],
    }
    (folder / SUMMARY_FILE).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    verdict = "every fault caused its page, and there was no other" if good else "a page is missing, wrong or surplus"
    if late := sum(result.late for result in demo.results):
        verdict += f"; {late} late, at a load of {load:.1f} on {os.cpu_count()} cores"
    screen.note(f"{verdict}; took {span(time.monotonic() - began)}; details in {folder / SUMMARY_FILE}", good)
    if options.keep:
        stop = f"{shlex.quote(os.path.relpath(sys.executable))} -m tachograph_lab demo --stop"
        stop += f" --folder {shlex.quote(str(options.folder))}" if options.folder else ""
        address = stack.url("prometheus").removeprefix("http://")
        screen.note(f"dashboards: {Path(sys.executable).parent}/tachograph dashboards --prometheus {address}")
        screen.left_running({part: stack.url(part) for part in stack.ports}, folder / PAGES_FILE, stop)
    return 0 if good else 1


def _leave_running(stack: Stack, pager: Pager) -> None:
    """Start a fresh healthy job, and on the same port a pager that outlives this process."""
    pager.close()
    command = [sys.executable, "-m", "tachograph_lab.pager", str(pager.port), str(stack.folder / PAGES_FILE)]
    stack.children.start("pager", command)
    launch(stack.children, FIRST_RUN, RANKS, stack.socket)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = LabParser("demo", "Run a real job, inject five faults, show the pages they cause.")
    parser.add_argument(
        "--keep", action="store_true", help="leave the stack and a fresh healthy job running at the end"
    )
    parser.add_argument("--stop", action="store_true", help="stop what an earlier --keep left running, then exit")
    parser.add_argument("--folder", type=lambda text: Path(text).resolve(), help="where everything is written (.demo)")
    parser.add_argument("--healthy", type=float, help="seconds of healthy training before the first fault (6 scrapes)")
    parser.add_argument(
        "--scrape",
        type=seconds,
        metavar="TIME",
        help="interval of scrapes and evaluations (5s); pages have 2 or 3 to come",
    )
    parser.add_argument("--rl", action="store_true", help="jobs that generate what they train on, by TRL's GRPO")
    parser.add_argument(
        "--recovery", action="store_true", help="a training that is restarted after each of five faults"
    )
    kinds = list(dict.fromkeys(scenario.fault.kind for scenario in (*SCENARIOS, *RL_SCENARIOS)))
    parser.add_argument("--only", choices=kinds, help="inject one fault only")
    options = parser.parse_args(arguments)
    if options.only not in (None, *(each.fault.kind for each in (RL_SCENARIOS if options.rl else SCENARIOS))):
        parser.error(f"--only {options.only} is none of this demo's faults")
    if options.rl and options.keep:
        parser.error("--keep leaves the usual demo's job running: give it without --rl")
    if options.recovery and (
        options.rl or options.keep or options.only or options.scrape or options.healthy is not None
    ):
        parser.error("--recovery takes --folder and no other option")
    if options.rl and find_spec("trl") is None:
        parser.error("--rl needs TRL: pip install trl, or make demo-rl")
    return options


class _FolderInUseError(Exception):
    """Another demo uses the folder."""


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _FolderInUseError(f"another demo is using {folder}; wait for it, or give --folder") from error
        yield
