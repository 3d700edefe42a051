"""`tachograph preflight` on four real ranks: torchrun, gloo, and a script that prepares each rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.schemas import conforms

FOLDER = Path(__file__).parent
RANKS = 4
DEADLINE = 180.0


class Launcher:
    """Starts preflight on four ranks; `scripts` are lines of shell that a rank runs first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()

    def shim(self, name: str) -> Path:
        """Return a library built from a C source beside this file."""
        library = self.folder / f"{name}.so"
        source = FOLDER / f"{name}.c"
        subprocess.run(["cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        return library

    def run(
        self,
        *arguments: str | Path,
        scripts: Mapping[int, str] | None = None,
        around: Sequence[str | Path] = (),
        ranks: int = RANKS,
    ) -> dict[str, Any]:
        """Return the object that rank 0 printed; `around` is put before torchrun. Its status must fit the object."""
        for rank, script in (scripts or {}).items():
            (self.folder / f"rank-{rank}.sh").write_text(script, encoding="utf-8")
        prepared = self.folder / "prepared"
        prepared.write_text(
            f'#!/bin/sh\nset -e\nlines={self.folder}/rank-$RANK.sh\n[ ! -f "$lines" ] || . "$lines"\nexec "$@"\n'
        )
        prepared.chmod(0o755)
        out = self.folder / "out.json"
        command = [
            *around, sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks,
            "--no-python", prepared,
            "sh", "-c", f'if [ "$RANK" = 0 ]; then exec "$@" >{out}; else exec "$@"; fi', "sh",
            sys.executable, "-m", "tachograph", "preflight", "--json", *arguments,
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        errors = self.folder / "errors"
        with errors.open("wb") as log:
            process = subprocess.Popen(
                list(map(str, command)), env=environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                process.wait(DEADLINE)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        said = errors.read_text(encoding="utf-8", errors="replace")
        assert out.is_file(), said[-3000:]
        text = out.read_text(encoding="utf-8")
        assert text, said[-3000:]
        found: dict[str, Any] = conforms("preflight", text)
        assert (process.returncode == 0) == (found["state"] != "fail"), said[-3000:]
        return found
