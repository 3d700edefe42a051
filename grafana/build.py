"""Write the dashboards: `python grafana/build.py`, or `--check` to write nothing and fail where a file has drifted."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import run

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS = {"run.json": run.dashboard}


def main() -> int:
    """Write or compare every dashboard; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a file has drifted")
    check = parser.parse_args().check
    drifted = []
    for name, make in DASHBOARDS.items():
        path, text = FOLDER / name, json.dumps(make(), indent=1, ensure_ascii=False) + "\n"
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            drifted.append(name)
    if drifted:
        print(f"{', '.join(drifted)}: not what the code makes; run python grafana/build.py", file=sys.stderr)
    return bool(drifted)


if __name__ == "__main__":
    sys.exit(main())
