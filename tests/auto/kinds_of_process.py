"""A process that imports PyTorch, of the kind that its argument names; it knows nothing of Tachograph."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS, START = 12, 0.3
KIND = sys.argv[1]


def say(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def train(steps: int = STEPS) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (batch,) in DataLoader(TensorDataset(torch.randn(2 * steps, 4)), batch_size=2):
        step(model, optimizer, batch)
    say("weights", model.weight.double().sum().item())


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def of_two(rank: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    train(STEPS + rank)
    torch.distributed.destroy_process_group()


def infer() -> None:
    model = torch.nn.Linear(4, 1).eval()
    with torch.no_grad():
        for (batch,) in DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2, num_workers=1):
            model(batch)


def described() -> tuple[list[str], list[str], bool]:
    """Return the threads but PyTorch's own, the sockets, and whether an exception is Python's own business."""
    names = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):  # that of this list
            names.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
    sockets = [name for name in names if name.startswith("socket")]
    threads = [one.name for one in threading.enumerate() if one.name not in ("MainThread", "QueueFeederThread")]
    return threads, sockets, sys.excepthook is sys.__excepthook__


def main() -> None:
    if KIND == "inference":
        infer()
        torch.randn(3, requires_grad=True).sum().backward()  # a saliency map is no training
        say(*described())
    elif KIND == "trains":
        time.sleep(START)
        train()
    elif KIND == "spawns":
        torch.multiprocessing.spawn(of_two, nprocs=2)
    elif KIND == "forks":
        infer()
        child = get_context("fork").Process(target=train)
        child.start()
        child.join()
    elif KIND == "side by side":
        children = [get_context("fork").Process(target=train, args=(steps,)) for steps in (STEPS, STEPS + 1)]
        for child in children:
            child.start()
        for child in children:
            child.join()
    elif KIND == "thread":
        infer()
        worker = threading.Thread(target=train)
        worker.start()
        worker.join()
        again = threading.Thread(target=train, args=(STEPS + 1,))
        again.start()
        again.join()
    elif KIND == "pool":
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as another:
            for number in range(STEPS):
                (pool, another)[number % 2].submit(step, model, optimizer, torch.randn(2, 4)).result()
    elif KIND == "between threads":
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with ThreadPoolExecutor(1) as pool:
            for _ in range(STEPS):
                model(torch.randn(2, 4)).sum().backward()
                pool.submit(optimizer.step).result()


if __name__ == "__main__":
    main()
