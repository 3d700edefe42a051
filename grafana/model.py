"""Sections of the dashboard "Run" for a closer look: memory, the inside of the model, failures."""

from __future__ import annotations

from absences import NO_RANK
from panels import BAND, UNITS, Json, lines, named, override, query, spread, stat
from series import of_ranks, of_run
from tachograph.catalog import index as c

NO_DEVICE = "not collected: no rank uses a CUDA device"
NO_LAYERS = "not collected: needs watch(model, optimizer, layers=…)"
NO_ACTIVATIONS = "not collected: needs watch(model, optimizer, activations=True)"
FAILED = of_run("run:failed:bool")
FAILURES = f"sum(resets({FAILED}[7d]) + {FAILED})"
BETWEEN = f"60 * sum(count_over_time({FAILED}[7d]) - sum_over_time({FAILED}[7d])) / ({FAILURES} > 0)"
"""Seconds of a week in which the run was whole, at a sample a minute, divided by its failures."""

RANK, LAYER = "rank {{rank}}", "{{layer}}"


def memory() -> list[Json]:
    """Return whether memory will last."""
    lasts = [
        query(f"min({of_run('node:memory_exhaustion_seconds:predicted', memory=where)})", name, instant=True)
        for where, name in (("gpu", "GPU"), ("host", "host"))
    ]
    return [
        lines("GPU memory reserved", UNITS["bytes"], "What PyTorch's allocator holds, over ranks; by name: the most. "
              "Flat after the first steps is good. A climb that does not stop is a leak.",
              spread(of_ranks(c.TRAIN_MEMORY_RESERVED), "topk", RANK), NO_DEVICE, overrides=BAND, min=0, w=8),
        lines("GPU memory in use", UNITS["ratio"], "Share of the memory that the allocator holds, on the rank with the "
              "highest: the most that tensors took, and what lies in blocks too small to use, if over 5 %. A peak near "
              "1 on a full GPU: a longer batch will not fit.",
              [query(f"max({of_run(c.RUN_MEMORY_PEAK)})", "peak"),
               query(f"max({of_run(c.RUN_MEMORY_FRAGMENTED)})", "unusable")], NO_DEVICE, min=0, max=1, w=8),
        lines("Host memory", UNITS["bytes"], "Memory of the ranks' processes; by name: the most. Flat is good. A climb "
              "ends with the kernel killing the rank: look at what the loop keeps.",
              spread(of_ranks(c.TRAIN_HOST_MEMORY), "topk", RANK), NO_RANK, overrides=BAND, min=0, w=8),
        lines("Allocation failures", "none", "Since the attempt began, over all ranks. Flat is good. A retry frees the "
              "cache and stalls the step: leave the allocator more room.",
              [query(f"sum({of_ranks(c.TRAIN_MEMORY_RETRIES)})", "retries"),
               query(f"sum({of_ranks(c.TRAIN_MEMORY_OOMS)})", "out of memory")],
              "none failed, or no rank uses a CUDA device", min=0, decimals=0,
              soft_max=4, w=12),
        stat("Time until memory is full", "s", "Time until the first rank that leaks has filled its GPU or its node, "
             "at the pace of the last 20 minutes. No leak is good.", lasts, "no leak", show="value_and_name",
             decimals=1, h=8, w=12),
    ]  # fmt: skip


def inside() -> list[Json]:
    """Return what the model's layers, its numbers and its precision do."""
    norms, rms = of_ranks(c.TRAIN_LAYER_GRAD_NORM), of_ranks(c.TRAIN_LAYER_ACTIVATION_RMS)
    return [
        lines("Gradient norm by layer", "none", "On rank 0, over layers; by name: the highest. Steady is good. One "
              "layer that leaves the band is where a spike begins.", spread(f"({norms} < Inf)", "topk", LAYER),
              NO_LAYERS, overrides=BAND, min=0, w=8),
        lines("Activations by layer", "none", "Root mean square on rank 0, over layers; by name: the highest. Steady "
              "is good. A climb over hours: the loss scale or the learning rate is too high.",
              spread(f"({rms} < Inf)", "topk", LAYER), NO_ACTIVATIONS, overrides=BAND, min=0, w=8),
        lines("Update ratio", "sci", "Size of the optimizer's update relative to the parameters, over ranks. Near 1e-3 "
              "is usual. Far above: the learning rate is too high; far below: the model hardly moves.",
              spread(of_ranks(c.TRAIN_UPDATE_RATIO)), "not collected: needs watch(model, optimizer, update_every=…)",
              overrides=BAND, w=8),
        lines("Loss scale", "none", "The gradient scaler's factor on the rank where it is lowest. A halving now "
              "and then is good. Falling all the time: gradients overflow, and steps are skipped.",
              [query(f"min({of_run('tachograph_run_amp_loss_scale')})", "lowest scale")],
              "not collected: needs watch(model, optimizer, scaler=…)", min=0, w=8),
        lines("Diverging ranks", "none", "Ranks whose checksum, batch or count differs from the others'. None is "
              "good: SilentDataCorruptionSuspected and InvariantBroken name the rank and the number.",
              [query(f"count(group by (instance, rank) ({of_run('rank:invariant_culprit:info')})) "
                     f"or 0 * max({of_run('run:ranks:count')})", "ranks")],
              NO_RANK, min=0, decimals=0, soft_max=4, w=8),
    ]  # fmt: skip


def past() -> list[Json]:
    """Return how often the run failed."""
    restarts = of_run("run:restarts:max")
    figures = {"failures in 7 days": FAILURES, "mean time between them": BETWEEN, "restarts": f"max({restarts})"}
    return [
        stat("Failures", "locale", "Times this run failed within a week, the mean time between two failures, and "
             "attempts after the first, as its launcher counts them. The runbooks of RankDead and RankFailed say what "
             "to ask; the best interval between checkpoints, on Data and checkpoint, follows from the mean time.",
             [named(figures, instant=True)], "no failure in 7 days, no restart", show="value_and_name",
             overrides=[override("mean time between them", unit="s", decimals=1)], w=24),
    ]  # fmt: skip
