"""Dask: a worker process that trains a task and lives on, until its cluster ends it."""

from __future__ import annotations

import os
from pathlib import Path

from distributed import Client, LocalCluster

HERE = str(Path(__file__).parent)


def train(folder: str, steps: int) -> None:
    """Train in a worker, with a Recorder of three lines."""
    import sys

    sys.path.append(folder)
    from doors import ThreeLines
    from small_loop import train as loop

    door = ThreeLines("recorder")
    loop(door, steps)
    door.close()


def main() -> None:
    """Have a worker train, then close the cluster."""
    local = Path.cwd() / "dask"
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1", local_directory=str(local)
        ) as cluster,
        Client(cluster) as client,
    ):
        client.submit(train, HERE, 60).result(timeout=300)


if __name__ == "__main__":  # Dask's workers import this again
    os.environ["DASK_DISTRIBUTED__WORKER__DAEMON"] = "true"
    main()
