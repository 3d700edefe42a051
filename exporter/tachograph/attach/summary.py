"""The summary that `tachograph run` prints at the end: what it could see of a script, and what it could not.

With `--watch` what was measured follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tachograph.text import humanize
from tachograph.text.printable import printable

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

NOT_SEEN = "not seen: "
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
            f"tachograph run: {NOT_SEEN}{'; '.join(unseen) or 'nothing'}\n"
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

SUMMARY_ENVIRONMENT = "TACHOGRAPH_SUMMARY_FILE"
"""Where a script under `tachograph run --watch` leaves its summary, for the watch to print it after the figures."""

SAYS = "tachograph run: "
LABEL = 10
"""Columns of the first column of the table."""

NO_RANK = "no rank connected: nothing was measured (a script that trains without PyTorch needs a Recorder)"


@dataclass(frozen=True)
class Figures:
    """The measurements of a run. Times are in seconds; by rank, or added up over the ranks.

    `seconds` is how long it trained, start-up left out; `phases` are shares of it; `lags` are by how much later than
    the median rank each came to its collectives, in each step. Of a rank's mean ordinary step `step` is the length,
    `own` its own time by phase, `wait` its wait for others, None where that is not measured.
    """

    run: str
    ranks: int
    steps: float
    seconds: float
    phases: Mapping[str, float]
    step: float | None
    own: Mapping[str, float]
    wait: float | None
    tokens: float
    samples: float
    flops: float
    mfu: float | None
    lags: Mapping[int, float]
    gpu_memory: Mapping[int, float]
    host_memory: Mapping[int, float]
    productive: float
    lost: Mapping[str, float]


def figures_text(runs: Iterable[Figures], wrong: Sequence[str] = (), seen: str = "") -> str:
    """Return what is wrong, then a short table on each run, for a person; `seen` is what the script's own summary says.

    Its last line is what was not measured or not seen.
    """
    runs = list(runs)
    lines = [*wrong, *(line for one in runs for line in _lines(one))] or [NO_RANK]
    unseen = [word for one in runs for word in _unmeasured(one)]
    for text in seen.splitlines():
        said = text.removeprefix(SAYS)
        if said.startswith(NOT_SEEN):
            unseen = [*(word for word in said.removeprefix(NOT_SEEN).split("; ") if word != NEVER), *unseen]
        else:
            lines.append(_row("recorded", said.removeprefix("recorded ")) if said.startswith("recorded ") else said)
    if unseen:
        lines.append(_row("not seen", "; ".join(dict.fromkeys(unseen))))
    return "".join(f"{SAYS}{printable(line)}\n" for line in lines)


def _row(name: str, text: str) -> str:
    return f"  {name:<{LABEL}} {text}"


def _lines(one: Figures) -> Iterator[str]:
    """Yield a line for each question: how fast, where the time went, who was slow, how much memory, what is missing."""
    ranks = humanize.plural(one.ranks, "rank")
    if not one.steps or not one.seconds:
        yield f"{one.run}: no step was completed on {ranks}"
        return
    mean = one.seconds / one.steps
    yield f"{one.run}: {humanize.plural(one.steps, 'step')} on {ranks}, {humanize.duration(mean)} each, pauses included"
    speed = [f"{humanize.short(amount / one.seconds)} {unit}" for amount, unit in (
        (one.tokens, "tokens/s"), (one.samples, "samples/s")) if amount]  # fmt: skip
    speed += [] if one.mfu is None else [f"MFU {humanize.percent(one.mfu, 1)}"]
    if speed:
        yield _row("speed", ", ".join(speed))
    yield from _step(one)
    known = one.productive + sum(one.lost.values())
    if one.lost and known:
        causes = _shares({cause: seconds / known for cause, seconds in one.lost.items()})
        yield _row("whole time", f"{humanize.percent(one.productive / known)} was training; lost: {causes}")
    if one.ranks > 1 and one.lags:
        slowest = max(one.lags, key=lambda rank: one.lags[rank])
        lag = one.lags[slowest]
        said = f"rank {slowest}, which the others waited {humanize.duration(lag)} for in each step"
        yield _row("slowest", said if lag > LAG_SHARE * mean else "none: the ranks are equally fast")
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
        yield _row("memory", ", ".join(memory))


def _unmeasured(one: Figures) -> Iterator[str]:
    """Yield what was not measured, with the reason; nothing of a run without a step."""
    missing = {
        "MFU (no FLOPs given: --tokens-per-step with --flops-per-token, or --flops-per-step)": not one.flops,
        "MFU (the device's peak FLOP/s are not known)": one.flops and one.mfu is None,
        "throughput (--tokens-per-step or --samples-per-step)": not one.tokens and not one.samples,
        "GPU memory (no CUDA device was used)": not one.gpu_memory,
        "the slowest rank (no waits for collectives were seen)": one.ranks > 1 and not one.lags,
    }
    if one.steps and one.seconds:
        yield from (word for word, is_missing in missing.items() if is_missing)


def _step(one: Figures) -> Iterator[str]:
    """Yield where a step's time goes: own work, and the waits for data and for others, which are nobody's work."""
    if not one.step:
        yield _row("phases", _shares(one.phases))
        return
    own = {phase: seconds for phase, seconds in one.own.items() if phase != "data"}
    parts = {"own": sum(own.values()), "waits for data": one.own.get("data", 0.0), "for other ranks": one.wait or 0.0}
    told = [
        f"{name} {humanize.duration(seconds)} ({humanize.percent(min(seconds / one.step, 1.0))})"
        for name, seconds in parts.items()
        if seconds >= 0.01 * one.step
    ]
    yield _row("step", f"{humanize.duration(one.step)}: {', '.join(told) or 'nothing of note'}")
    if own:
        yield _row("own time", _shares({phase: seconds / sum(own.values()) for phase, seconds in own.items()}))
    elsewhere = {phase: share for phase, share in one.phases.items() if phase in ("checkpoint", "eval")}
    if any(share >= 0.01 for share in elsewhere.values()):
        yield _row("besides", f"{_shares(elsewhere)} of all time since start-up")


def _shares(shares: Mapping[str, float]) -> str:
    """Return shares of a time by name, the largest first; those below a percent are left out."""
    named = sorted(shares.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {humanize.percent(share)}" for name, share in named if share >= 0.01) or "nothing of note"
