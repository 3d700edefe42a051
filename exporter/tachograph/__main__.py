"""`tachograph <command>`: wiring only."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from tachograph._version import __version__

USAGE = """usage: tachograph [--version] [--help] COMMAND ...

commands:
  run        run a training script and record it without an edit
  exporter   serve what this node's GPUs and training ranks do, for Prometheus
  silence    keep a run's pages quiet for a while, and say why
  top        watch this node or a run in a terminal, the worst first
  dashboards show the dashboards in a browser, without a Grafana
  report     write a page on a run and a window of time, to attach to a post-mortem
  capture    record what this machine's NVML answers, for tests and bug reports

tachograph COMMAND --help tells more.
"""


def _exporter(arguments: Sequence[str]) -> int:
    from tachograph.node.app import run_exporter

    return run_exporter(arguments)


def _run(arguments: Sequence[str]) -> int:
    from tachograph.attach.command import main as run

    return run(arguments)


def _silence(arguments: Sequence[str]) -> int:
    from tachograph.silence.command import main as silence

    return silence(arguments)


def _top(arguments: Sequence[str]) -> int:
    from tachograph.top.command import main as top

    return top(arguments)


def _dashboards(arguments: Sequence[str]) -> int:
    from tachograph.dashboards.command import main as dashboards

    return dashboards(arguments)


def _report(arguments: Sequence[str]) -> int:
    from tachograph.report.command import main as report

    return report(arguments)


def _capture(arguments: Sequence[str]) -> int:
    from tachograph.node.gpu.capture import main as capture

    return capture(arguments)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "run": _run,
    "exporter": _exporter,
    "silence": _silence,
    "top": _top,
    "dashboards": _dashboards,
    "report": _report,
    "capture": _capture,
}


TOOLS = frozenset({"dashboards", "report", "silence", "top"})
"""Commands that need the extra `tools`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; 141, as of a program that SIGPIPE ends, where nobody reads on."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] == "run":  # what it raises is the script's
        return _run(given[1:])
    try:
        status = _command(given)
        print(end="", flush=True)  # where standard output is closed there is none to flush
    except BrokenPipeError:  # as in `tachograph top | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 128 + signal.SIGPIPE
    return status


def _command(given: Sequence[str]) -> int:
    if given and given[0] == "--version":
        print(f"tachograph {__version__}")
        return 0
    if given and given[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if not given or given[0] not in COMMANDS:
        what = f"unknown command {given[0]!r}" if given else "no command given"
        print(f"tachograph: {what}: expected one of {', '.join(COMMANDS)}; see tachograph --help", file=sys.stderr)
        return 2
    try:
        return COMMANDS[given[0]](given[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tachograph"):
            raise  # a fault of ours, not a missing extra
        extra = "tools" if given[0] in TOOLS else "exporter"
        print(f"tachograph {given[0]}: {error.name} is missing: pip install 'tachograph[{extra}]'", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
