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
    "eval": "evaluation (model.eval(), batches fetched without gradients or never trained on)",
    "checkpoint": "saves (torch.save, torch.distributed.checkpoint)",
    "gradient norm": "the gradient norm (clip_grad_norm_)",
    "optimizers": "more than one optimizer: a step ends with that of the first",
}

PAUSE = "a long one may page RunHung: --hang-seconds"

UNSEEN = {
    "data": "the wait for data (no torch DataLoader was iterated over in the main thread)",
    "backward": "backward (it did not run through torch.autograd.backward)",
    "loss": "the loss (backward was not called on one number)",
    "eval": f"evaluation ({PAUSE})",
    "checkpoint": f"saves ({PAUSE})",
    "gradient norm": "the gradient norm",
}
"""What was not seen, and why, or what it may page."""

NEVER = "tokens and FLOPs unless given (--tokens-per-step, --flops-per-token)"


class Summary:
    """The things that were seen, by key, the number of steps and of ranks; filled by the observer.

    `launched`: the script itself, or a launcher inside it, made this process one of several ranks.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.own_recorder = False
        self.ranks = 1
        self.launched = False
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
        if self.launched:
            unseen.insert(
                0, f"{self.ranks - 1} of {self.ranks} ranks, unless each was started with tachograph run (torchrun -m)"
            )
        if not given:
            unseen.append(NEVER)
        return (
            f"tachograph run: recorded {self.steps} steps: {', '.join(seen)}\n"
            f"tachograph run: not seen: {'; '.join(unseen) or 'nothing'}\n"
        )
