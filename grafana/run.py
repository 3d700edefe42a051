"""The dashboard "Run": is it making progress, is it fast, does it learn, which rank or GPU is holding it up.

The first screen answers that; what a closer look needs stands in closed rows, which ask nothing until they are opened.
A panel is one entry in one of the functions below; its place follows from its order. Every panel draws fewer than 50
series, for 8 ranks or for 16,384.
"""

from __future__ import annotations

import generation
import model
import shell
from absences import NO_LOSS, NO_MFU, NO_RANK
from changes import what_changed
from condition import CONDITION, CONDITION_WORDS, firing_of_run
from culprits import node_table, rank_table, ranks_by_phase
from panels import (
    BAND,
    BASELINE,
    CAUSES,
    PHASES,
    PURPLE,
    SPIKE,
    UNITS,
    Json,
    band,
    coloured,
    lines,
    named,
    override,
    query,
    row,
    spread,
    stat,
)
from series import of_ranks, of_run, own, stepping
from tachograph.catalog import index as c


def or_not_known(number: str) -> str:
    """Return the number, or one that Grafana shows as no value, so that its name stays on the panel."""
    return f"({number} or vector(NaN))"


def top() -> list[Json]:
    """Return the band that answers in five seconds: does it run, how far and fast is it, what fires, what changed."""
    info = f"group by (instance, rank, world_size) ({own(of_run(c.RANK_INFO))})"
    up = f"sum by (world_size) ({own(of_run(c.RANK_UP))} * on (instance, rank) group_left (world_size) {info})"
    step = f"(max({of_run('run:train_step:max')}) or max({of_run(c.TRAIN_STEP)}))"
    ahead = f"max({of_run(c.TRAIN_TOTAL_STEPS)}) - {step} > 0 < Inf"
    pace = f"(max({of_run('run:step_interval_seconds:mean2m')}) or max({of_run('run:step_interval_seconds:p50')}))"
    progress = {
        "step": step,
        "speed": stepping(f"1 - max({of_run('run:speed_loss:ratio')})"),
        "since step": f"time() - max({of_run('run:progress_timestamp_seconds:max')})",
        "since save": f"max({of_run('run:checkpoint_age_seconds:min')})",
    }
    left = {"time left": f"({ahead}) * {pace}"}  # most runs do not say how many steps they make
    return [
        stat("Run", "none", "The worst condition that holds for any rank. Running is good. Stalled: no step for "
             "longer than ten usual ones. Hung, dead, failed or frozen: the alerts and tables name the rank.",
             [query(CONDITION, instant=True)], NO_RANK, mappings=CONDITION_WORDS, w=5),
        stat("Ranks reporting", "none", "Ranks whose process is alive, out of the world size they were started with. "
             "Fewer than the world size: the table of ranks shows which node's are missing.",
             [query(f'count_values by (world_size) ("up", {up})', "{{up}} of {{world_size}}", instant=True)],
             NO_RANK, show="name", w=5),
        firing_of_run(w=8),
        what_changed(w=6, h=6),
        stat("Progress", "s", "The furthest step of any rank, which climbs; speed relative to its usual one, 100 % is "
             "good; time since the last step, which stays near the step time; age of the last checkpoint, which a "
             "failure would lose; time left at the pace of two minutes, which needs `Recorder(total_steps=…)`.",
             [named({name: or_not_known(number) for name, number in progress.items()} | left, instant=True)], "–",
             show="value_and_name", decimals=1, size=16, w=10,
             overrides=[override("step", unit="locale", decimals=0),
                        override("speed", unit=UNITS["ratio"], decimals=0)]),
    ]  # fmt: skip


def day_before(series: str) -> dict[str, str]:
    """Return what a series was at the same hour yesterday, under the name of its line; absent without such a past."""
    return {"a day before": f"{series} offset 1d"}


DAY_BEFORE = override("a day before", color={"mode": "fixed", "fixedColor": PURPLE},
                      custom__lineStyle={"fill": "dash", "dash": [2, 6]})  # fmt: skip

GOODPUT = override("goodput", color={"mode": "fixed", "fixedColor": "text"}, custom__stacking={"mode": "none"},
                   custom__fillOpacity=0, custom__lineWidth=2)  # fmt: skip


def first_look() -> list[Json]:
    """Return how fast the run is and whether it learns, at a glance."""
    phases = f"sum by (phase) ({of_run('run:phase_seconds:median')})"
    spiking = f"{of_run('run:loss:median')} and on (run) {of_run('run:loss_spike_steps:median')} > 0"
    mfu, mean = of_run("run:step_mfu:ratio"), of_run("run:step_seconds:mean1m")
    median = f"quantile(0.5, {own(of_run(c.TRAIN_RECENT_STEP))})"
    return [
        lines("Step time", UNITS["seconds"], "Wall time of an ordinary step: the median rank's, and the mean "
              "of all steps in a minute, with a gap during a hang. Flat, and like a day before, is good. Mean above "
              "median: some steps stall, for data or a late rank. Both up: see which phase grew.",
              [named({"median": stepping(median), "mean": stepping(mean)} | day_before(mean))],
              "no step completed in this range", overrides=[DAY_BEFORE], min=0),
        lines("MFU", UNITS["ratio"], "Model FLOP/s of completed steps as a share of the dense peak of all devices, "
              "against the hour before and the same hour yesterday; wall-clock counts pauses, too. On the "
              "dashed line is good. Below it: see which phase grew, then who lags.",
              [named({"completed steps": stepping(mfu), "wall-clock": of_run("run:mfu:ratio"),
                      "baseline": of_run("run:step_mfu:baseline")} | day_before(mfu))],
              NO_MFU, overrides=[BASELINE, DAY_BEFORE], min=0),
        lines("Where the time goes", UNITS["ratio"], "Share of the median rank's step by phase; collective is its "
              "wait for other ranks. Forward and backward should fill it. A growing data share starves the GPUs: look "
              "at the loader and its storage.",
              [query(stepping(f"({phases} / ignoring (phase) group_left () sum({phases}) > 0)"), "{{phase}}")],
              NO_RANK, stack=True, overrides=coloured(PHASES), min=0, max=1),
        lines("Loss", "none", "Training loss over nodes: the median, and the band from lowest to highest. Falling is "
              "good. Red points: a spike goes on. A gap while steps go on: the loss is not finite.",
              [named(band(f"({of_run(c.RUN_LOSS)} > -Inf < Inf)") | {"spike": spiking})],
              NO_LOSS, overrides=[*BAND, SPIKE]),
    ]  # fmt: skip


def efficiency() -> list[Json]:
    """Return how fast the run really goes, against itself."""
    rates = ("tokens:rate1m", "productive_seconds:rate2m", "new_steps_seconds:rate2m", "lost_seconds:rate2m")
    tokens, worth, steps, lost = (of_run(f"run:{name}") for name in rates)
    paid = f"({worth} + ignoring (cause) sum without (cause) ({lost}) > 0)"
    work = {unit: f"sum({of_run(c.RUN_WORK, unit=unit)})" for unit in ("flops", "hardware_flops")}
    shares = {
        "MFU": of_run("run:mfu:ratio"),
        "HFU": f"{work['hardware_flops']} / sum({of_run(c.RUN_PEAK_FLOPS)})",
        "of achievable": f"{work['flops']} / sum({of_run(c.RUN_ACHIEVABLE_FLOPS)})",
    }
    return [
        lines("Tokens per second", "si:tok/s", "Tokens all ranks trained on. Flat is good. A step down that stays: "
              "MFU shows whether the model or the machines changed.",
              [named({"tokens": tokens} | day_before(tokens))], "not collected: needs tokens_per_step",
              overrides=[DAY_BEFORE], min=0, w=12),
        lines("Goodput, and where the time goes", UNITS["ratio"], "Line: goodput, the share of all rank-time that goes "
              "into new steps; near 100 % is good. Areas: work, and what is lost by cause. Collective (waits for other "
              "ranks) and data lie inside steps; checkpoint: save less often or in the background; rework: more often.",
              [query(f"{steps} / {paid}", "goodput"),
               query(f"{worth} / {paid}", "work"),
               query(f"{lost} / ignoring (cause) group_left () {paid} > 0", "{{cause}}")],
              "not accounted yet", stack=True, overrides=[*coloured(CAUSES), GOODPUT], min=0, max=1, w=12),
        lines("MFU, HFU and achievable share", UNITS["ratio"], "Wall-clock shares of the dense peak: model FLOP/s, and "
              "FLOP/s with recomputation; and model FLOP/s as a share of what these GPUs reach at their power limit.",
              [named(shares)], NO_MFU, min=0, w=12),
        lines("Step time over ranks", UNITS["seconds"], "Ordinary steps of all ranks within five minutes: the median "
              "one, and the one that 1 % exceed. Close together is good. p99 alone up: single steps stall; see which "
              "ranks are late. Scraped as text, p99 may be 41 % off; as native histograms, 2.5 %.",
              [named({"p50": of_run("run:step_seconds:p50"), "p99": of_run("run:step_seconds:p99")})],
              "no step completed in this range", min=0, w=12),
    ]  # fmt: skip


def learning() -> list[Json]:
    """Return whether the run learns."""
    validation, norm = (f"({of_run(metric)} > -Inf < Inf)" for metric in (c.RUN_VAL_LOSS, c.RUN_GRAD_NORM))
    return [
        lines("Validation loss", "none", "Loss on held-out data, over the nodes that log it. Falling with the loss is "
              "good. Rising while the loss falls: the run overfits, or the two sets differ.", spread(validation),
              "no finite val_loss, or none is logged: needs step.log(val_loss=…)", overrides=BAND, w=8),
        lines("Gradient norm", "none", "Gradient norm over nodes. Steady is good. If it jumps with the loss, the spike "
              "is real: look at the batch, the learning rate, the last restart.", spread(norm),
              "no finite grad_norm, or none is logged: needs step.log(grad_norm=…)", overrides=BAND, w=8),
        lines("Learning rate", "sci", "The rate of the first parameter group, or what the loop logs. A step here "
              "explains a step in the loss.",
              [query(f"max({of_run(c.RUN_LEARNING_RATE)})", "learning rate")],
              "not collected: needs watch(model, optimizer) or step.log(learning_rate=…)", min=0, decimals=2, w=8),
        lines("Spikes and non-finite steps", "none", "Steps since the loss began to spike, and steps with a value "
              "that was not finite, on the rank with the most. 0 is good. A spike that heals needs nothing. If its "
              "steps climb, it does not heal: go back to the last good checkpoint and skip the batch.",
              [query(f"max by (source) ({of_ranks(c.TRAIN_NONFINITE)})", "non-finite {{source}}"),
               query(of_run("run:loss_spike_steps:median"), "steps in spike")],
              NO_RANK, min=0, decimals=0, soft_max=4, w=8),
        lines("The run's own metrics", "none", "Declared with `Recorder(metrics=…)`: the median over ranks. "
              "Each has a scale of its own: click a name to see it alone. What each means is on the exporter's page.",
              [query(f"quantile by (name) (0.5, {of_ranks(c.TRAIN_CUSTOM)})", "{{name}}")],
              "none declared", w=8),
    ]  # fmt: skip


def ranks() -> list[Json]:
    """Return what the ranks do."""
    longest = f"max_over_time({of_ranks(c.RANK_PHASE)}[$__rate_interval])"
    return [
        ranks_by_phase(w=12),
        lines("Longest time in one phase", UNITS["seconds"], "How long the rank that is longest in a phase has been "
              "in it. Below the step time is good, except for checkpoint and eval. Lines that climb are a hang: the "
              "phase that climbed first holds the culprit, the others wait for it.",
              [query(f"max by (phase) ({longest})", "{{phase}}")], "no rank is running", overrides=coloured(PHASES),
              min=0, w=12),
    ]  # fmt: skip


def dashboard() -> Json:
    """Return the whole dashboard."""
    return shell.dashboard(
        "run",
        "One training run: is it making progress, is it fast, does it learn, which rank or GPU is holding it up?",
        [*top(), rank_table(w=14, h=10), node_table(w=10, h=10), *first_look(),
         row("Efficiency", *efficiency()), row("Learning", *learning()), row("Rank activity", *ranks()),
         row("Memory", *model.memory()), row("Inside the model", *model.inside()),
         row("Generation", *generation.generation()), row("Failures", *model.past())],
    )  # fmt: skip
