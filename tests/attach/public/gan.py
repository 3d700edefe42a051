"""Two networks against each other: the discriminator's loss in two parts, each with a backward; the generator's."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(240, 4)), batch_size=4)
discriminator, generator = torch.nn.Linear(4, 1), torch.nn.Linear(2, 4)
first = torch.optim.Adam(discriminator.parameters(), lr=0.001)
second = torch.optim.Adam(generator.parameters(), lr=0.001)
for (real,) in loader:
    first.zero_grad()
    made = generator(torch.randn(4, 2))
    loss_real = discriminator(real).square().mean()
    loss_real.backward()
    loss_made = (discriminator(made.detach()) - 1).square().mean()
    loss_made.backward()
    first.step()
    second.zero_grad()
    loss = 1000 + discriminator(made).square().mean()
    loss.backward()
    second.step()
    print(f"{loss_real.item() + loss_made.item():.6f}")
time.sleep(1.2)  # the last of them is sent
