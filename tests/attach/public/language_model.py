"""A language model's loop without a loader: accumulated gradients, evaluation, checkpoints, and a start from one."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

UNTIL, ACCUMULATE, EVERY, PAUSE = int(sys.argv[1]), 4, 20, 0.2

torch.manual_seed(0)
text = torch.randint(64, (10_000,))
model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
checkpoint, begin = Path("ckpt.pt"), 0
if checkpoint.exists():
    found = torch.load(checkpoint)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    begin = found["step"]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return some characters and the ones that follow them."""
    start = int(torch.randint(len(text) - 33, (1,)))
    return text[start : start + 32], text[start + 1 : start + 33]


def loss_of(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a batch."""
    return torch.nn.functional.cross_entropy(model(pair[0]), pair[1])


@torch.no_grad()
def estimate() -> float:
    """Return the mean loss of some batches."""
    model.eval()
    time.sleep(PAUSE)
    losses = [loss_of(batch()).item() for _ in range(3)]
    model.train()
    return sum(losses) / 3


pair = batch()
for step in range(begin, UNTIL):
    if step % EVERY == 0:
        print(f"{step} {estimate():.9f}")
        if step > begin:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint)
    total = 0.0
    for _ in range(ACCUMULATE):
        loss = loss_of(pair) / ACCUMULATE
        pair = batch()
        time.sleep(0.002)
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{total:.9f} {norm.item():.9f}")
time.sleep(1.2)  # the last of them is sent
