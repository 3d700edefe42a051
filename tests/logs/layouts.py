"""What ranks print, and the folders that are made of it: each hides one cause."""
# ruff: noqa: E501  lines as they are printed

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from tachograph.logs.reading import Reading, read
from tachograph.logs.sources import plan
from tachograph.logs.verdict import LogVerdict, conclude

START = datetime(2026, 11, 20, 10, 0, 0, tzinfo=timezone.utc)
Files = dict[str, str | bytes]


class Hidden(NamedTuple):
    """What a folder hides: a category, the rank that may be named, the node, and the ranks that are silent."""

    category: str
    rank: int | None = None
    node: str = ""
    silent: tuple[int, ...] = ()


FOLDERS: dict[str, tuple[Callable[[], Files], Hidden]] = {}


def folder(
    category: str, rank: int | None = None, node: str = "", silent: tuple[int, ...] = ()
) -> Callable[[Callable[[], Files]], Callable[[], Files]]:
    """Note a folder with what it hides."""

    def noted(made: Callable[[], Files]) -> Callable[[], Files]:
        FOLDERS[made.__name__] = made, Hidden(category, rank, node, silent)
        return made

    return noted


def judged(tmp_path: Path, files: Files) -> LogVerdict:
    """Return what is concluded from a folder of these files."""
    for name, text in files.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reading = Reading()
    read(plan([str(tmp_path / "run")], reading.problems), reading, lambda _: None)
    return conclude(reading)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def python_time(seconds: float) -> str:
    moment = at(seconds)
    return f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03}"


def steps(
    first: int, last: int, prefix: str = "", form: str = "step {n}/9000 | loss 2.1{n} | grad norm 0.4 | lr 3e-4"
) -> str:
    return "".join(f"{prefix}{python_time(n)} INFO {form.format(n=n)}\n" for n in range(first, last))


def traceback(error: str, prefix: str = "", file: str = "/w/train.py", name: str = "train_step") -> str:
    lines = (
        "Traceback (most recent call last):",
        f'  File "{file}", line 80, in {name}',
        "    loss = model(batch)",
        error,
    )
    return "".join(f"{prefix}{line}\n" for line in lines)


def watchdog(rank: int, seconds: float, prefix: str = "") -> str:
    stamp = f"[rank{rank}]:[E{at(seconds):%m%d %H:%M:%S}.100000000 ProcessGroupNCCL.cpp:632] [Rank {rank}]"
    return (
        f"{prefix}{stamp} Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600047 milliseconds before timing out.\n"
        f"{prefix}{stamp} To avoid data inconsistency, we are taking the entire process down.\n"
    )


def peer_gone(rank: int, prefix: str = "") -> str:
    return traceback(
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2006, remote process exited or there was a network error, NCCL version 2.21.5",
        f"{prefix}[rank{rank}]: ",
    )


UPLOAD = traceback(
    "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://api.wandb.ai/graphql",
    file="/opt/venv/lib/python3.12/site-packages/requests/models.py",
    name="raise_for_status",
)
SAMPLE = traceback(
    "PIL.UnidentifiedImageError: cannot identify image file '/data/a.jpg'", file="/w/data.py", name="__getitem__"
)
