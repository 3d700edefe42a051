"""`tachograph-lab COMMAND`: runs the command's module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

from tachograph.processes.closed_output import exit_status
from tachograph_lab.checkout import CheckoutError, root

COMMANDS: Mapping[str, str] = {
    "demo": "run a real training job, inject five faults, show the pages they cause",
    "replay": "replay incidents and compare the pages received with those expected",
    "fleet": "run a simulated fleet behind real exporters",
    "campaign": "replay random incidents and check that each page names the culprit",
    "healthy": "replay healthy days, which must cause no notification",
    "supervised": "supervise incidents in shadow mode and report how right it would have been",
}
"""The name of each command, which is also that of its module in `commands/`, and its description."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    return exit_status(_command, list(sys.argv[1:] if arguments is None else arguments))


def _command(given: Sequence[str]) -> int:
    if given and given[0] in ("-h", "--help"):
        print("usage: tachograph-lab COMMAND ...\n\ncommands:")
        print("\n".join(f"  {name:10} {text}" for name, text in COMMANDS.items()))
        print("\nRun tachograph-lab COMMAND --help for the options of a command.")
        return 0
    if not given or given[0] not in COMMANDS:
        what = f"unknown command {given[0]!r}" if given else "no command given"
        expected = ", ".join(COMMANDS)
        print(f"tachograph-lab: {what}: expected one of {expected}; see tachograph-lab --help", file=sys.stderr)
        return 2
    try:
        if not {"-h", "--help"} & {*given}:
            root()  # every command needs the repository
        status: int = importlib.import_module(f"tachograph_lab.commands.{given[0]}").main(given[1:])
    except CheckoutError as error:
        print(f"tachograph-lab: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
