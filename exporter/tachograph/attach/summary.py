"""The summary that `tachograph run` prints at the end: what it could see of a script, and what it could not."""

from __future__ import annotations

SEEN = {
    "data": "the wait for data",
    "backward": "backward",
    "optimizer": "the optimizer",
    "learning rate": "the learning rate",
    "schedule": "its schedule",
    "loss": "the loss",
    "loss scale": "the loss scale",
    "gradient all-reduce": "DistributedDataParallel's all-reduce",
    "eval": "evaluation (batches fetched without gradients or never trained on)",
}

UNSEEN = {
    "data": "the wait for data (no torch DataLoader was iterated over in the main thread)",
    "backward": "backward (it did not run through torch.autograd.backward)",
    "loss": "the loss (backward was not called on one number)",
}
"""What was not seen, and why."""

NEVER = "checkpoints, gradient norms, tokens and FLOPs unless given (--tokens-per-step, --flops-per-token)"


class Summary:
    """The things that were seen, by key, and the number of steps; filled by the observer."""

    def __init__(self) -> None:
        self.steps = 0
        self.own_recorder = False
        self._seen: set[str] = set()

    def see(self, what: str) -> None:
        """Note that something was seen."""
        self._seen.add(what)

    def text(self, given: bool) -> str:
        """Return two lines for a person; `given` is whether an amount per step was given."""
        if self.own_recorder:
            return "tachograph run: the script records itself; nothing was added\n"
        if not self.steps:
            return (
                "tachograph run: no training step was seen: none of torch's optimizers made a step in the main thread "
                "of this process (processes that the script starts are not watched)\n"
            )
        seen = [words for key, words in SEEN.items() if key in self._seen]
        unseen = [words for key, words in UNSEEN.items() if key not in self._seen]
        if "data" in self._seen and "backward" in self._seen:
            seen.insert(1, "forward (from a batch to its backward)")
        unseen.append(NEVER.partition(", tokens")[0] if given else NEVER)
        return (
            f"tachograph run: recorded {self.steps} steps: {', '.join(seen)}\n"
            f"tachograph run: not seen: {'; '.join(unseen)}\n"
        )
