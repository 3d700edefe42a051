"""The exporter of bench/soak.py: `soak_exporter.py FILE OPTION …` is `tachograph exporter OPTION …` that also counts.

Every five seconds a thread appends to FILE, as a line of JSON, how many asyncio tasks, objects and blocks of memory
there are.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from pathlib import Path

from tachograph.node.command import main as exporter

EVERY_SECONDS = 5.0
"""Looking at every object takes some 20 ms, in which no scrape is answered."""


def count(path: Path) -> None:
    """Count until the process ends."""
    with path.open("a", encoding="utf-8", buffering=1) as file:
        while True:
            objects = gc.get_objects()
            tasks = sum(isinstance(each, asyncio.Task) for each in objects)
            line = {
                "time": time.monotonic(),
                "tasks": tasks,
                "objects": len(objects),
                "blocks": sys.getallocatedblocks(),
            }
            del objects
            file.write(json.dumps(line) + "\n")
            time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    threading.Thread(target=count, args=(Path(sys.argv[1]),), daemon=True).start()
    sys.exit(exporter(sys.argv[2:]))
