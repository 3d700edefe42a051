"""The result of a benchmark as a table on stdout and as JSON in bench/out/."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tachograph_lab.checkout import root

OUT = root() / "bench/out"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile of `values`; `share` from 0 to 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * (len(ordered) - 1))))]


def show(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> None:
    """Print `rows` (same keys each) as aligned columns under `title`."""
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    print(f"\n{title}\n")
    for line in [columns, *cells]:
        first, *rest = (cell.ljust(widths[0]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(line))
        print("  " + "  ".join([first, *rest]))
    if note:
        print(f"\n  {note}")


def markdown(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


def between(text: str, begin: str, end: str, lines: Sequence[str]) -> str:
    """Return a document with these lines between two of its own, which must be there."""
    head, rest = text.split(begin, maxsplit=1)
    tail = rest.split(end, maxsplit=1)[1]
    return head + begin + "\n" + "\n".join(lines) + "\n" + end + tail


def save(name: str, result: Mapping[str, Any]) -> Path:
    """Write `result` and a description of the machine to bench/out/NAME.json; return the path."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    path.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    print(f"\n  written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return path


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, 99th percentile and highest of `values`."""
    return {"p50": statistics.median(values), "p99": quantile(values, 0.99), "max": max(values)}


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
