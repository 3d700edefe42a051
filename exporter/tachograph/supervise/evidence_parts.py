"""The parts of the evidence: the node's findings, stacks, boxes, the ends of logs. Run as a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tachograph.collect import capture, collect, exporters
from tachograph.collect.private_folder import PrivateFolder
from tachograph.supervise.evidence import NOT_KEPT
from tachograph.supervise.findings import MOST_BYTES, PATH
from tachograph.text.redact import redact_lines
from tachograph.triage import elsewhere
from tachograph.triage import text as triage_text

INDEX = "README.txt"
MOST_KEPT = 20
"""Folders of evidence in one place; after that no more is kept, as what a person reads first is the first."""

CAPTURE_SECONDS, STACK_SECONDS = 4.0, 4.0
MOST_RANKS, MOST_LOGS = 64, 64
STACK_BYTES, LOGS_BYTES = 256 << 10, 1 << 20
"""Of a rank's stacks, and of all logs together: to look for secrets in 1 MiB takes 4 s. With boxes of 512 KiB that is
at most 17 + 64 × 0.75 MiB, on a node of 64 ranks."""


def main() -> None:
    """Write the evidence that is asked for; say where it is, or why there is none."""
    sys.stdout.buffer.write(os.fsencode(_keep(json.loads(sys.argv[1]))))


def _keep(asked: dict[str, Any]) -> str:
    """Write each part on its own, and what fails into README.txt; return where that is, or why nothing was kept."""
    into = Path(asked["into"])
    try:
        if into.parent.is_dir() and sum(1 for _ in into.parent.iterdir()) >= MOST_KEPT:
            return f"{NOT_KEPT}{into.parent} already has {MOST_KEPT} folders of evidence; move some away"
        into.mkdir(mode=0o700, parents=True)
    except OSError as error:
        return f"{NOT_KEPT}{into}: {error.strerror or error}"
    lines = [f"Evidence of run {asked['run']}, kept before its training was ended."]
    with PrivateFolder(into) as folder:
        for name, part in _parts(asked, into, folder):
            try:
                lines.append(f"{name}: {part()}")
            except Exception as error:  # noqa: BLE001 - one part that fails is no reason to lose the others
                lines.append(f"{name}: failed: {type(error).__name__}: {error}")
        folder.write(INDEX, "".join(f"{line}\n" for line in lines).encode())
    return str(into)


def _parts(asked: dict[str, Any], into: Path, folder: PrivateFolder) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the parts by name, what is gone soonest first."""
    nodes, run = asked["addresses"], asked["run"]
    addresses = list(nodes.values())
    yield "node.json", lambda: _node(nodes, folder)
    yield "stacks", lambda: _stacks(asked["pids"], folder)
    yield "boxes", lambda: _boxes(addresses, run, into / "boxes")
    yield "triage.txt", lambda: _triage(addresses, run, folder)
    yield "logs", lambda: _logs([Path(path) for path in asked["logs"]], folder)


def _node(nodes: dict[str, str], folder: PrivateFolder) -> str:
    """Write what each node's exporter concludes about it."""
    answers = exporters.side_by_side(list(nodes.values()), lambda address: exporters.body(address, PATH, MOST_BYTES))
    failed = []
    for node, address in nodes.items():
        answer = answers[address]
        if isinstance(answer, exporters.ExporterError):
            failed.append(f"{node or 'this node'}: {answer}")
        else:
            folder.write(f"node-{node}.json" if node else "node.json", answer)
    return "; ".join(["what the exporters conclude about their nodes", *failed])


def _stacks(pids: dict[str, str], folder: PrivateFolder) -> str:
    """Write the stacks of each rank's process, where py-spy is installed and may read it."""
    program = shutil.which("py-spy")
    if program is None:
        return "py-spy is not installed; the boxes have each rank's line, if they came"
    some = dict(list(pids.items())[:MOST_RANKS])

    def dump(rank: str, pid: str) -> bool:
        try:
            # --nonblocking: a py-spy that is killed would otherwise leave the process stopped.
            done = subprocess.run(
                [program, "dump", "--nonblocking", "--pid", pid], capture_output=True, timeout=STACK_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return False
        folder.write(f"rank-{rank}.txt", done.stdout[:STACK_BYTES], "stacks")
        return True

    with ThreadPoolExecutor(8) as pool:
        came = sum(pool.map(dump, some.keys(), some.values()))
    return f"of {came} of {len(pids)} ranks"


def _boxes(addresses: Sequence[str], run: str, into: Path) -> str:
    """Have the ranks that still speak send a box, then fetch the newest of each."""
    capture.capture(addresses, run, CAPTURE_SECONDS, ras=False)
    found = collect.collect(addresses, run, into)
    return f"of {len(found.boxes)} ranks; tachograph blackbox analyze {into} says who holds the run up"


def _logs(paths: Sequence[Path], folder: PrivateFolder) -> str:
    """Write the ends of the newest log files at these paths, without what looks like a secret; long lines are cut."""
    if not paths:
        return "none: --logs names a file or folder whose end is kept"
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    newest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:MOST_LOGS]
    each = LOGS_BYTES // max(len(newest), 1)
    for number, path in enumerate(newest):
        with path.open("rb") as file:
            begin = max(path.stat().st_size - each, 0)
            file.seek(begin)
            lines = file.read(each).decode(errors="replace").splitlines()[begin > 0 :]  # a part of a line is none
        folder.write(f"{number:02}-{path.name}", "".join(f"{line}\n" for line in redact_lines(lines)).encode(), "logs")
    return f"the ends of {len(newest)} of {len(files)} files"


def _triage(addresses: Sequence[str], run: str, folder: PrivateFolder) -> str:
    """Write what `tachograph triage` says from these exporters alone."""
    found = elsewhere.of_exporters(run, addresses)
    said = triage_text.lines(found, (), 100)
    folder.write("triage.txt", "".join(f"{line}\n" for line in said).encode())
    return "the same in words"
