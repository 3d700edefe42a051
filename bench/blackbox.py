"""The analysis of a run's dumps: 1,024 full rings of 2,000 operations with stacks, one rank stuck on its host.

Makes the dumps (800 MB of pickles), then prints how long `tachograph blackbox analyze` takes of the clock and of the
cores, and how much memory its largest process has.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

START = 1_790_000_000 * 10**9
TENSOR_RANKS = 8
LIBRARY, SCRIPT = "/v/lib/python3.11/site-packages/torch/", "/home/u/megatron/"
STACKS = [
    [
        (LIBRARY + "distributed/distributed_c10d.py", 2806, "all_reduce"),
        (LIBRARY + "distributed/c10d_logger.py", 83, "wrapper"),
        (f"{SCRIPT}core/mappings.py", 20 + number, f"reduce_{number}"),
        (f"{SCRIPT}core/mlp.py", 148, "forward"),
        (LIBRARY + "nn/modules/module.py", 1747, "_call_impl"),
        (f"{SCRIPT}core/layer.py", 301, "forward"),
        (f"{SCRIPT}training.py", 742, "train_step"),
        (f"{SCRIPT}training.py", 1204, "train"),
        (f"{SCRIPT}training.py", 301, "pretrain"),
        ("/home/u/pretrain.py", 264, "<module>"),
    ]
    for number in range(12)
]
OPERATIONS, STATES, DTYPES = ("nccl:all_reduce", "nccl:_reduce_scatter_base"), ("started", "completed"), ["BFloat16"]


def dump(rank: int, world: int, ring: int, stuck: int) -> dict[str, Any]:
    """Return the recorder of a rank whose tensor group is done and whose data group waits for the one that is stuck."""
    tensor, data = divmod(rank, TENSOR_RANKS)
    groups = {"0": range(world), str(1 + tensor): range(tensor * TENSOR_RANKS, (tensor + 1) * TENSOR_RANKS)}
    groups[str(world + data)] = range(data, world, TENSOR_RANKS)
    names, kinds = list(groups), ("default_pg", "TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP")
    calls = [0, 30_000, 30_000]
    waits = data == stuck % TENSOR_RANKS
    entries = []
    for number in range(ring - (rank == stuck)):
        which = 2 if number == ring - 1 or number % 10 == 9 else 1
        calls[which] += 1
        done = not (waits and number == ring - 1)
        at = START + number * 4_000_000
        entries.append(
            {
                "record_id": number, "pg_id": which, "process_group": (names[which], kinds[which]),
                "collective_seq_id": calls[which], "p2p_seq_id": 0, "op_id": number,
                "profiling_name": OPERATIONS[number % 3 == 0], "time_created_ns": at, "duration_ms": None,
                "input_sizes": [[8192, 1 + number % 5]], "input_dtypes": DTYPES,
                "output_sizes": [[8192 if number % 3 else 1024, 1 + number % 5]], "output_dtypes": DTYPES,
                "state": STATES[done], "time_discovered_started_ns": at + 50_000,
                "time_discovered_completed_ns": at + 900_000 if done else None, "retired": done,
                "timeout_ms": 600_000, "is_p2p": False,
                "frames": [{"name": name, "filename": file, "line": line} for file, line, name in STACKS[number % 12]],
            }
        )  # fmt: skip
    status = {
        str(number): {
            "last_enqueued_collective": count, "last_started_collective": count,
            "last_completed_collective": count - (number == 2 and waits and rank != stuck),
        }
        for number, count in enumerate(calls)
    }  # fmt: skip
    config = {
        name: {"name": name, "desc": kind, "ranks": str(list(members))}
        for (name, members), kind in zip(groups.items(), kinds, strict=True)
    }
    return {"version": "2.9", "pg_config": config, "pg_status": status, "entries": entries}


def main() -> int:
    """Make the dumps, analyze them, print the figures; return the exit status: 1 if another rank than that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--ring", type=int, default=2000)
    given = parser.parse_args()
    stuck = given.ranks // 3
    with tempfile.TemporaryDirectory(prefix="tachograph-blackbox-") as folder:
        for rank in range(given.ranks):
            made = pickle.dumps(dump(rank, given.ranks, given.ring, stuck), 2)
            (Path(folder) / f"_dump_{rank}").write_bytes(made)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tachograph", "blackbox", "analyze", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    named = f"HELD UP BY: rank {stuck}" in done.stdout.splitlines()
    print(
        f"{given.ranks:,} dumps of {given.ring:,} operations, {size / 1e6:,.0f} MB: {'named' if named else 'NOT NAMED'}"
    )
    print(
        f"{seconds:.1f} s of the clock, {used.ru_utime + used.ru_stime:.1f} s of cores, {used.ru_maxrss / 1024:.0f} MB"
    )
    return 0 if named else 1


if __name__ == "__main__":
    sys.exit(main())
