"""The script of the unedited loops: torchrun and `tachograph run` start it, and it knows of neither."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fault_job import read, run_rank

folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
(folder / f"rank{rank}.pid").write_text(str(os.getpid()), encoding="utf-8")
run_rank(read(folder), rank, folder)
