"""`tachograph <command>`: wiring only."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import NamedTuple

from tachograph._version import __version__
from tachograph.processes.closed_output import exit_status
from tachograph.text.humanize import suggestion
from tachograph.text.printable import printable
from tachograph.text.wrapping import columns, wrapped


class Command(NamedTuple):
    """Where a command's main function is, its line in the help, and the extra that installs what it imports."""

    main: str
    summary: str
    extra: str = "tools"


COMMANDS: Mapping[str, Command] = {
    "run": Command(
        "tachograph.attach.command:main",
        "run a training script and record it without changing it",
        "exporter,tools",  # for --watch alone
    ),
    "auto": Command("tachograph.auto.command:main", "print the folder to put on PYTHONPATH to record every training"),
    "exporter": Command(
        "tachograph.node.command:main", "export metrics of this node's GPUs and training ranks", "exporter"
    ),
    "silence": Command("tachograph.silence.command:main", "silence the alerts of a run for a while, with a reason"),
    "top": Command("tachograph.top.command:main", "watch this node or a run in a terminal, worst first"),
    "dashboards": Command("tachograph.dashboards.command:main", "show the dashboards in a browser, without Grafana"),
    "triage": Command(
        "tachograph.triage.command:main", "say what is wrong with a run, why, and what to do next", "tools,logs"
    ),
    "report": Command("tachograph.report.command:main", "write a page about a run in a time window, for a post-mortem"),
    "history": Command(
        "tachograph.history.command:main", "show which nodes were culprits over weeks, and what precedes failures"
    ),
    "blackbox": Command(
        "tachograph.collect.command:main", "say from a stuck run's Flight Recorder dumps which rank holds it up"
    ),
    "logs": Command("tachograph.logs.command:main", "find the first cause of a failed run in its logs", "logs"),
    "bisect": Command("tachograph.bisect.command:main", "find the scale or the node at which a command begins to fail"),
    "supervise": Command(
        "tachograph.supervise.command:main", "start a training, and restart it by policy when it dies or hangs"
    ),
    "compare": Command(
        "tachograph.compare.command:main", "say whether a run is slower, larger or worse than another", "compare"
    ),
    "preflight": Command(
        "tachograph.preflight.command:main", "check nodes before a training run, by hand or under torchrun", "exporter"
    ),
    "bundle": Command(
        "tachograph.bundle.command:main", "write rules, routes, dashboards and runbooks for Prometheus and Kubernetes"
    ),
    "size": Command("tachograph.size.command:main", "say what Prometheus and the nodes need for a fleet"),
    "doctor": Command(
        "tachograph.doctor.command:main", "say what is wrong with an installation, and what to do about it"
    ),
    "capture": Command(
        "tachograph.node.gpu.capture:main", "record what NVML returns here, for tests and bug reports", "exporter"
    ),
}


LOCAL_RANK = ("--local_rank=", "--local-rank=")
"""What some launchers of modules (DeepSpeed's, `torch.distributed.launch`) put before a module's own arguments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    given = _asked_for_help(list(sys.argv[1:] if arguments is None else arguments))
    for_script = [given.pop(0)] if given[1:2] == ["run"] and given[0].startswith(LOCAL_RANK) else []
    if given and given[0] == "run":  # what it raises is the script's
        status = resolve_name(COMMANDS["run"].main)(given[1:], _watch, for_script)
        return int(status)
    return exit_status(_command, given)


def _asked_for_help(given: list[str]) -> list[str]:
    """Return the arguments with `help` and `help COMMAND` as `--help` and `COMMAND --help`."""
    return [*given[1:2], "--help"] if given[:1] == ["help"] else given


def _command(given: Sequence[str]) -> int:
    if given and given[0] == "--version":
        print(f"tachograph {__version__}")
        return 0
    if given and given[0] in ("-h", "--help"):
        print("usage: tachograph [--version] [--help] COMMAND ...\n\ncommands:")
        listed = (f"  {name:10} {command.summary}" for name, command in COMMANDS.items())
        print("\n".join(wrapped(listed, min(columns(), 80), hang=11)))
        print("\nSee tachograph help COMMAND for its options.")
        return 0
    if not given or given[0] not in COMMANDS:
        hint = suggestion(given[0] if given else "", COMMANDS)
        what = f"unknown command {given[0]!r}" if given else "no command given"
        print(printable(f"tachograph: {what}; {hint}; see tachograph help"), file=sys.stderr)
        return 2
    try:
        return _run(given[0], given[1:])
    except ModuleNotFoundError as error:
        return _missing(given[0], error)
    except KeyboardInterrupt:
        return 130


def _watch(arguments: Sequence[str], quiet: bool, report: str) -> int:
    """Run what `tachograph run --watch` watches; its exporter and its figures need what the client does not."""
    try:
        watch = resolve_name("tachograph.watch.command:main")
    except ModuleNotFoundError as error:
        return _missing("run --watch", error)
    return int(watch(arguments, quiet, report))


def _missing(command: str, error: ModuleNotFoundError) -> int:
    """Say which extra a command needs; return its exit status."""
    if (error.name or "").startswith("tachograph"):
        raise error  # a fault of ours, not a missing extra
    from tachograph import extras  # reads the metadata of packages, which no other command needs

    how = extras.command(COMMANDS[command.partition(" ")[0]].extra)
    print(f"tachograph {command}: {error.name} is not installed: {how}", file=sys.stderr)
    return 1


def _run(name: str, arguments: Sequence[str]) -> int:
    status: int = resolve_name(COMMANDS[name].main)(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
