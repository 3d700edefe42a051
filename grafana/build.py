"""Write the dashboards: `python grafana/build.py`, or `--check` to write nothing and fail if a file has drifted."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS = {
    "fleet.json": "fleet",
    "run.json": "run",
    "ranks.json": "ranks",
    "node.json": "node",
    "storage.json": "storage",
    "monitoring.json": "monitoring",
    "incident.json": "incident",
}
"""File -> the module whose `dashboard()` returns it."""


def made(module: str) -> str:
    """Return the JSON of a dashboard."""
    make: Callable[[], dict[str, Any]] = importlib.import_module(module).dashboard
    return json.dumps(make(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write or compare every dashboard; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file has drifted")
    check = parser.parse_args().check
    drifted = []
    for name, module in DASHBOARDS.items():
        path, text = FOLDER / name, made(module)
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            drifted.append(name)
    if drifted:
        print(f"{', '.join(drifted)}: not what the code makes; run python grafana/build.py", file=sys.stderr)
    return bool(drifted)


if __name__ == "__main__":
    sys.exit(main())
