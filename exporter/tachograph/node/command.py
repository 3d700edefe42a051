"""`tachograph exporter`: reads the configuration, then loads and runs the exporter."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tachograph.node.config import read_config
from tachograph.node.config_file import ConfigError
from tachograph.text.humanize import plural


def main(arguments: Sequence[str]) -> int:
    """Run the exporter until SIGTERM or SIGINT; return its exit status.

    It is 0, 1 if an address or a socket is in use, which may be temporary, or 2 if the configuration is faulty.
    """
    try:
        config = read_config(arguments)
    except ConfigError as error:
        sys.stderr.write(f"tachograph exporter: {plural(len(error.faults), 'fault')} in the configuration\n")
        sys.stderr.writelines(f"  {fault}\n" for fault in error.faults)
        return 2
    from tachograph.node.app import run_exporter  # what --help and a faulty configuration need not have installed

    return run_exporter(config, arguments)
