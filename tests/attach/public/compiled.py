"""A compiled model, compiled again for batches of another size, and an optimizer whose step is compiled, too."""

from __future__ import annotations

import time

import torch
from torch._dynamo.utils import counters

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
forward = torch.compile(model, backend="eager", dynamic=False)
optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))
step = torch.compile(optimizer.step, backend="eager")
for number in range(40):
    loss = forward(torch.randn(8 if number < 20 else 6, 4)).square().mean()
    loss.backward()
    step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
print(sum(counters["graph_break"].values()), "graph breaks")
time.sleep(1.2)  # the last of them is sent
