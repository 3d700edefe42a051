"""Checkpoints: one by torch.distributed.checkpoint, one beside the training, and one by torch.save that fails."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.distributed import checkpoint

torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
upload = None
for number in range(30):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if number == 10:
        checkpoint.save({"model": model.state_dict()}, checkpoint_id="first")
    if number == 15:
        upload = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id="second")
    if number == 20:
        assert upload is not None
        upload.result()
        Path("third").write_text("in the way")
        try:
            torch.save(model.state_dict(), "third/model.pt")
        except RuntimeError as error:
            print(type(error).__name__)
time.sleep(1.2)  # the last of them is sent
torch.distributed.destroy_process_group()
