"""`tachograph-lab <command>`: wiring only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

COMMANDS: Mapping[str, str] = {
    "demo": "watch a real training job break, and the pages arrive",
    "replay": "replay an incident, and compare what is received with what should be",
    "fleet": "run a simulated fleet behind real exporters",
    "campaign": "replay random incidents: who is named, against who it was",
    "healthy": "replay healthy days, which must bring no page",
}
"""Name, which is that of the module in `commands/`, and what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ("-h", "--help"):
        print("usage: tachograph-lab COMMAND ...\n\ncommands:")
        print("\n".join(f"  {name:10} {text}" for name, text in COMMANDS.items()))
        print("\ntachograph-lab COMMAND --help tells more.")
        return 0
    if not given or given[0] not in COMMANDS:
        what = f"unknown command {given[0]!r}" if given else "no command given"
        expected = ", ".join(COMMANDS)
        print(f"tachograph-lab: {what}: expected one of {expected}; see tachograph-lab --help", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"tachograph_lab.commands.{given[0]}").main(given[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
