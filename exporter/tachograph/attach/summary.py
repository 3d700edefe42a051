"""The summary that `tachograph run` prints at the end: what it could see of a script, and what it could not.

With `--watch` what was measured follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tachograph import humanize
from tachograph.printable import printable

PAUSE = "a long one may page RunHung: --hang-seconds"

UNSEEN = {
    "batch": "the wait for data (no loader of PyTorch's was iterated over in the main thread)",
    "backward": "backward (it did not run through torch.autograd.backward)",
    "loss": "the loss (backward was not called on one number)",
    "learning_rate": "the learning rate (the optimizer's first group has none on the host)",
    "evaluation": f"evaluations ({PAUSE})",
    "checkpoint": f"checkpoints ({PAUSE})",
    "grad_norm": "the gradient norm (not clipped by PyTorch's functions, or in parts)",
}
"""What has no value at the end, and why, or which page that may cause."""

NEVER = "tokens and FLOPs unless given (--tokens-per-step, --flops-per-token)"


class Summary:
    """A count of what was recorded, by key, and the number of steps, trainings and ranks; filled by the observer.

    `launched`: the script itself, or a launcher inside it, made this process one of several ranks. `received`: an
    exporter has answered.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.trainings = 1
        self.own_recorder = False
        self.ranks = 1
        self.launched = False
        self.received = True
        self._counts: Counter[str] = Counter()
        self._loss_made_of = ""

    def count(self, what: str, times: int = 1) -> None:
        """Note that something was recorded once more."""
        self._counts[what] += times

    def step_completed(self, logged: Iterable[str], batches: int, loss_made_of: str, *, backward: bool) -> None:
        """Note a step, the names of the values logged with it, and what its loss was made of."""
        self.steps += 1
        self._counts["batch"] += batches
        self._counts["backward"] += backward
        for name in logged:
            self._counts[name] += 1
        self._loss_made_of = loss_made_of or self._loss_made_of

    def text(self, given: bool) -> str:
        """Return two lines for a person; `given` is whether an amount per step was given."""
        if self.own_recorder:
            return "tachograph run: the script records itself; nothing was added\n"
        if not self.steps:
            return (
                "tachograph run: no training step was seen: none of torch's optimizers made a step in the main thread "
                "of this process (processes that the script starts are not watched)\n"
            )
        unseen = [words for key, words in UNSEEN.items() if not self._counts[key]]
        if self.launched:
            unseen.insert(
                0, f"{self.ranks - 1} of {self.ranks} ranks, unless each was started with tachograph run (torchrun -m)"
            )
        if not given:
            unseen.append(NEVER)
        trainings = f" of {self.trainings} trainings" if self.trainings > 1 else ""
        to_nobody = "" if self.received else ", which no exporter has received"
        return (
            f"tachograph run: recorded {humanize.plural(self.steps, 'step')}{trainings}{to_nobody}: "
            f"{', '.join(self._recorded())}\n"
            f"tachograph run: not seen: {'; '.join(unseen) or 'nothing'}\n"
        )

    def _recorded(self) -> Iterator[str]:
        """Yield what has a value, with its number where it has one."""
        counts = self._counts
        if counts["batch"]:
            yield f"{humanize.plural(counts['batch'], 'batch', 'batches')} and the wait for them"
        if counts["batch"] and counts["backward"]:
            yield "forward (from a batch to its backward)"
        if counts["backward"]:
            yield "backward"
        yield "the optimizer"
        if counts["loss"]:
            made_of = f" (each {self._loss_made_of})" if self._loss_made_of else ""
            yield f"{humanize.plural(counts['loss'], 'loss', 'losses')}{made_of}"
        if counts["learning_rate"]:
            yield "the learning rate" + (" and its schedule" if counts["schedule"] else "")
        if counts["grad_norm"]:
            yield humanize.plural(counts["grad_norm"], "gradient norm")
        if counts["loss_scale"]:
            yield "the loss scale"
        if counts["all_reduce"]:
            yield f"{humanize.plural(counts['all_reduce'], 'all-reduce')} of DistributedDataParallel"
        for what in ("evaluation", "checkpoint"):
            if counts[what]:
                yield humanize.plural(counts[what], what)
        if counts["other_optimizer"]:
            yield "more than one optimizer: a step ends with that of the first"


LAG_SHARE = 0.02
"""Of a step: what ranks differ by anyway."""

NO_RANK = "no rank connected: nothing was measured (a script that trains without PyTorch needs a Recorder)"


@dataclass(frozen=True)
class Figures:
    """The measurements of a run. Times are in seconds; by rank, or added up over the ranks.

    `seconds` is how long it trained, start-up left out; `phases` are shares of it; `lags` are by how much later than
    the median rank each came to its collectives, in each step.
    """

    run: str
    ranks: int
    steps: float
    seconds: float
    phases: Mapping[str, float]
    tokens: float
    samples: float
    flops: float
    mfu: float | None
    lags: Mapping[int, float]
    gpu_memory: Mapping[int, float]
    host_memory: Mapping[int, float]
    productive: float
    lost: Mapping[str, float]


def figures_text(runs: Iterable[Figures]) -> str:
    """Return a few lines for a person on each run."""
    found = [f"tachograph run: {printable(line)}\n" for one in runs for line in _lines(one)]
    return "".join(found) or f"tachograph run: {NO_RANK}\n"


def _lines(one: Figures) -> Iterator[str]:
    """Yield a line for each question: how fast, where the time went, who was slow, how much memory, what is missing."""
    if not one.steps or not one.seconds:
        yield f"{one.run}: no step was completed"
        return
    step = one.seconds / one.steps
    speed = [f"{humanize.plural(one.steps, 'step')} on {humanize.plural(one.ranks, 'rank')}"]
    speed.append(f"{humanize.duration(step)} each, pauses included")
    for amount, unit in ((one.tokens, "tokens/s"), (one.samples, "samples/s")):
        speed += [f"{humanize.short(amount / one.seconds)} {unit}"] if amount else []
    speed += [] if one.mfu is None else [f"MFU {humanize.percent(one.mfu, 1)}"]
    yield f"{one.run}: {', '.join(speed)}"
    yield "where a step's time went: " + _shares(one.phases)
    known = one.productive + sum(one.lost.values())
    if one.lost and known:
        causes = _shares({cause: seconds / known for cause, seconds in one.lost.items()})
        yield f"of the run's whole time {humanize.percent(one.productive / known)} was training; lost: {causes}"
    if one.ranks > 1 and one.lags:
        slowest = max(one.lags, key=lambda rank: one.lags[rank])
        lag = one.lags[slowest]
        said = f"rank {slowest}, which the others waited {humanize.duration(lag)} for in each step"
        yield f"slowest rank: {said if lag > LAG_SHARE * step else 'none: they are equally fast'}"
    memory = [
        f"{humanize.gibibytes(sizes[most])} GiB {what}" + f" (rank {most})" * (one.ranks > 1)
        for sizes, what in (
            (one.gpu_memory, "of GPU tensors at most"),
            (one.host_memory, "of host memory near the end"),
        )
        if sizes
        for most in [max(sizes, key=lambda rank: sizes[rank])]
    ]
    if memory:
        yield f"memory: {', '.join(memory)}"
    missing = {
        "MFU (no FLOPs given: --tokens-per-step with --flops-per-token, or --flops-per-step)": not one.flops,
        "MFU (the device's peak FLOP/s are not known)": one.flops and one.mfu is None,
        "throughput (--tokens-per-step or --samples-per-step)": not one.tokens and not one.samples,
        "GPU memory (no CUDA device was used)": not one.gpu_memory,
        "the slowest rank (no waits for collectives were seen)": one.ranks > 1 and not one.lags,
    }
    if words := [word for word, is_missing in missing.items() if is_missing]:
        yield f"not measured: {'; '.join(words)}"


def _shares(shares: Mapping[str, float]) -> str:
    """Return shares of a time by name, the largest first; those below a percent are left out."""
    named = sorted(shares.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {humanize.percent(share)}" for name, share in named if share >= 0.01) or "nothing of note"
