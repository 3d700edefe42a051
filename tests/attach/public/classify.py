"""A classifier as the tutorials write it: a look at the validation data first, then epochs with a validation each."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCHES, CHECKED = 4, 50, 2

torch.manual_seed(0)
inputs = torch.randn(BATCHES * 4, 8)
training = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
validation = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def validate(limit: int) -> float:
    """Return the summed loss of the first `limit` batches of the validation."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for number, (features, target) in enumerate(validation):
            if number == limit:
                break
            total += torch.nn.functional.mse_loss(model(features), target).item()
    return total


print(f"{validate(CHECKED):.9f}")
for _ in range(EPOCHS):
    model.train()
    for features, target in training:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(features), target)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9f}")
    print(f"{validate(BATCHES):.9f}")
