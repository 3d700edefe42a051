"""A notebook: a kernel runs its cells, the last of which trains, and is shut down in an orderly way afterwards."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CELLS = """
import sys
sys.path.append({folder!r})
from doors import ThreeLines
from small_loop import train
door = ThreeLines("recorder")
---
train(door, {steps}, fails_at={fails_at})
---
door.close()
"""


def main() -> None:
    """Run the cells; one that raises is the last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fails_at", type=int, default=0)
    parser.add_argument("--door")  # there is one
    options = parser.parse_args()
    text = CELLS.format(folder=str(Path(__file__).parent), steps=options.steps, fails_at=options.fails_at)
    cells = [nbformat.v4.new_code_cell(cell.strip()) for cell in text.split("---")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    try:
        NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    except CellExecutionError as error:
        if not options.fails_at:
            raise
        sys.stderr.write(f"{error.ename}\n")


main()
