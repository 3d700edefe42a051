"""A Lightning training: its look at the validation data first, accumulated gradients, a validation after each epoch."""

from __future__ import annotations

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Predict."""
        self.layer(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


lightning.seed_everything(0, verbose=False)
data = TensorDataset(torch.randn(160, 4))
trainer = lightning.Trainer(
    max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accumulate_grad_batches=2,
)  # fmt: skip
module = Module()
trainer.fit(module, DataLoader(data, batch_size=4), DataLoader(data, batch_size=4))
print(f"{sum(parameter.double().sum().item() for parameter in module.parameters()):.9f}")
