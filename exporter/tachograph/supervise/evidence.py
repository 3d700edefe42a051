"""Keeps what says why a run stands, before anything of it is ended: the node's findings, boxes, stacks and logs.

A process of its own (`evidence_parts.py`) has 20 s for it, and it alone touches the folder: a rank that does not
answer, or a file system that hangs, delays nothing further.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tachograph.processes.own_process import own_process
from tachograph.supervise.run_seen import RunSeen

SECONDS = 20.0
NOT_KEPT = "not kept: "
"""How a text begins that says why nothing was kept."""


def keep(addresses: Mapping[str, str], run: RunSeen, into: Path, logs: Sequence[Path]) -> str:
    """Keep the evidence of each node's exporter in a new folder, within 20 s; return in words what came of it.

    Stacks are of this node's ranks.
    """
    here = ("", os.environ.get("SLURMD_NODENAME"))
    asked = {
        "addresses": dict(addresses), "run": run.name, "into": str(into), "logs": [str(path) for path in logs],
        "pids": {rank.rank: rank.pid for rank in run.ranks if rank.pid.isdecimal() and rank.node in here},
    }  # fmt: skip
    try:
        process = subprocess.Popen(
            own_process("tachograph.supervise.evidence_parts", json.dumps(asked)), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError as error:
        return f"{NOT_KEPT}{error.strerror or error}"
    assert process.stdout is not None
    with process.stdout:
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # and not waited for: a file system that hangs keeps it
            return f"{into} has what there was after {SECONDS:.0f} s"
    return said or f"{into} has a part of it: the disk may be full"
