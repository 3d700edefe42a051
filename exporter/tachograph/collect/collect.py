"""`tachograph blackbox collect RUN --out DIR`: fetches the boxes of a run into a folder that `analyze` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tachograph.blackbox import served
from tachograph.blackbox.served import ServedBox
from tachograph.collect import exporters
from tachograph.collect.exporters import Asked, ExporterError
from tachograph.collect.private_folder import PrivateFolder


@dataclass
class Collected:
    """The boxes that were written, and which were not and why."""

    asked: Asked
    boxes: list[tuple[str, ServedBox]] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    """Ranks whose box could not be had, and why."""

    ras: str = ""
    """The name of the file with what NCCL's RAS service said, empty without one."""

    missing: list[int] = field(default_factory=list)
    """Ranks of the newest attempt that have no box anywhere."""


def collect(addresses: Sequence[str], run: str, out: Path) -> Collected:
    """Fetch every rank's newest box of each attempt, from whichever exporter has it; raise OSError for the folder."""
    asked = exporters.indexes(addresses, run)
    result = Collected(asked)
    wanted = served.newest(asked.runs)
    with PrivateFolder(out) as folder, ThreadPoolExecutor(exporters.AT_A_TIME) as pool:
        for start in range(0, len(wanted), exporters.AT_A_TIME):  # so many are in memory at most
            some = wanted[start : start + exporters.AT_A_TIME]
            for (address, box), text in zip(
                some, pool.map(lambda one: _fetched(one[0], one[1], run), some), strict=True
            ):
                if isinstance(text, ExporterError):
                    result.failed[box.rank] = str(text)
                else:
                    folder.write(f"rank-{box.rank}.json", text, str(box.attempt))
                    result.boxes.append((address, box))
        if asked.runs:
            folder.write(served.KNOWN_FILE, served.as_file(asked.runs.values()))
        result.ras = _ras(asked, run, folder)
    result.missing = _missing(result)
    return result


def _fetched(address: str, box: ServedBox, run: str) -> bytes | ExporterError:
    try:
        text = exporters.body(address, served.box_path(run, box.attempt, box.rank, asked=box.asked), served.LARGEST_BOX)
        if fault := served.box_fault(text, box.rank):
            raise ExporterError(fault)
    except ExporterError as error:
        return error
    return text


def _ras(asked: Asked, run: str, folder: PrivateFolder) -> str:
    """Write what NCCL's RAS service said on the node where it was asked last; return the file's name."""
    having = [(index.time, address, index.ras) for address, index in asked.runs.items() if index.ras]
    for _, address, kind in sorted(having, reverse=True):
        try:
            text = exporters.body(address, served.ras_path(run), served.LARGEST_RAS + 1)
        except ExporterError:
            continue
        folder.write(f"ras.{kind}", text)
        return f"ras.{kind}"
    return ""


def _missing(result: Collected) -> list[int]:
    attempt = max((box.attempt for _, box in result.boxes), default=0)
    have = {box.rank for _, box in result.boxes if box.attempt == attempt}
    size = max((index.world_size for index in result.asked.runs.values()), default=0)
    return sorted(set(range(min(size, served.MOST_WORLD))) - have - result.failed.keys())


def as_json(run: str, out: Path, found: Collected) -> Mapping[str, object]:
    """Return the result for --json."""
    return {
        "run": run,
        "out": str(out),
        "boxes": [
            {
                "rank": box.rank, "attempt": box.attempt, "time": box.time, "reason": box.reason,
                "exporter": exporters.shown(address), "node": found.asked.runs[address].node,
                "file": f"{box.attempt}/rank-{box.rank}.json",
            }
            for address, box in found.boxes
        ],
        "failed": {str(rank): why for rank, why in found.failed.items()},
        "missing": found.missing,
        "ras": found.ras or None,
        "exporters": {exporters.shown(one): why for one, why in found.asked.failed.items()},
        "without": [exporters.shown(one) for one in found.asked.without],
    }  # fmt: skip
