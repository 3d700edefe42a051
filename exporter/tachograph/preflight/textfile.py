"""The measured figures as a file for node_exporter's textfile collector, so that a node has a history of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tachograph.files import atomic_file
from tachograph.preflight.finding import Measurement

FIGURES = {
    "clock_offset_seconds": "How far this rank's clock was ahead of the median of all ranks.",
    "checkpoint_write_bytes_per_second": "Speed at which a probe was written to the checkpoint folder.",
    "checkpoint_read_bytes_per_second": "Speed at which that probe was read again.",
    "group_seconds": "Time that this rank took to join a process group.",
    "compute_flops": "Floating-point operations per second of a matrix multiplication.",
    "memory_bandwidth_bytes_per_second": "Bytes read and written per second by a copy in a device's memory.",
    "bus_bandwidth_bytes_per_second": "Bus bandwidth of a collective over all ranks, as nccl-tests defines it.",
    "loader_batch_seconds": "Time between two batches of the data loader.",
}
"""Name -> help. Every one is a gauge, prefixed with tachograph_preflight_.

Those of pairs are not among them: a node meets other partners in each run, so they have no history.
"""

PREFIX = "tachograph_preflight_"


def write(path: str, measured: Collection[Measurement], *, passed: bool, now: float) -> None:
    """Write the figures, whose ranks are local ones, replacing the file at once, for it may be read; raise OSError."""
    text = "".join(f"{line}\n" for line in lines(measured, passed=passed, now=now))
    atomic_file.replace(Path(path).resolve(), text.encode(), 0o644)


def lines(measured: Collection[Measurement], *, passed: bool, now: float) -> Iterator[str]:
    """Yield the lines of the text format."""
    for name, text in FIGURES.items():
        own = [one for one in measured if one.name == name]
        if own:
            yield from _family(name, text, [(one.labels, one.rank, one.value) for one in own])
    for name, text, value in (
        ("passed", "1 if nothing that the last preflight checked was wrong, otherwise 0.", float(passed)),
        ("timestamp_seconds", "When the last preflight ended, in Unix time.", now),
    ):
        yield f"# HELP {PREFIX}{name} {text}"
        yield f"# TYPE {PREFIX}{name} gauge"
        yield f"{PREFIX}{name} {value!r}"


def _family(name: str, text: str, rows: Sequence[tuple[tuple[tuple[str, str], ...], int, float]]) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} gauge"
    for labels, rank, value in rows:
        written = ",".join(f'{key}="{_escaped(word)}"' for key, word in (("local_rank", str(rank)), *labels))
        yield f"{PREFIX}{name}{{{written}}} {value!r}"


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
