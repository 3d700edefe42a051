"""The dashboard "Run": is it making progress, is it fast, does it learn, which rank or GPU is holding it up.

A panel is one entry in one of the functions below; its place follows from its order. Names and units come from the
catalog, finished figures from the recording rules. Every panel draws fewer than 50 series, for 8 ranks or for 16,384.
"""

from __future__ import annotations

import model
import shell
from absences import NO_LOSS, NO_MFU, NO_RANK, NO_WAITS
from condition import CONDITION, CONDITION_WORDS, ON_A_RUN, firing_table
from culprits import LAG, node_table, rank_table, ranks_by_phase, sequence_spread
from panels import (
    BAND,
    BASELINE,
    CAUSES,
    GREY,
    PHASES,
    RED,
    SEVERITIES,
    SPIKE,
    UNITS,
    Json,
    bars,
    coloured,
    lines,
    override,
    query,
    row,
    spread,
    stat,
)
from series import FIRING, HERE, of_cluster, of_gpus, of_ranks, of_run, own, slows_down_at
from tachograph.catalog import index as c


def top() -> list[Json]:
    """Return the band that answers in five seconds: does it run, how far is it, does anything fire."""
    info = f"group by (instance, rank, world_size) ({own(of_run(c.RANK_INFO))})"
    up = f"sum by (world_size) ({own(of_run(c.RANK_UP))} * on (instance, rank) group_left (world_size) {info})"
    step = f"(max({of_run('run:train_step:max')}) or max({of_run(c.TRAIN_STEP)}))"
    ahead = f"max({of_run(c.TRAIN_TOTAL_STEPS)}) - {step} > 0 < Inf"
    pace = f"(max({of_run('run:step_interval_seconds:mean2m')}) or max({of_run('run:step_interval_seconds:p50')}))"
    left = f"({ahead}) * {pace}"
    of_baseline = f"{of_run('run:step_mfu:ratio')} / {of_run('run:step_mfu:baseline')}"
    return [
        stat("Run", "none", "The worst condition that holds for any rank. Running is good. Hung, dead, failed or "
             "frozen: the alerts next to it and the tables below name the rank.",
             [query(CONDITION, instant=True)], NO_RANK, mappings=CONDITION_WORDS, w=4),
        stat("Ranks reporting", "none", "Ranks whose process is alive, out of the world size they were started with. "
             "Fewer than the world size: the table of ranks shows which node's are missing.",
             [query(f'count_values by (world_size) ("up", {up})', "{{up}} of {{world_size}}", instant=True)],
             NO_RANK, show="name", w=4),
        stat("Alerts", "none", "Alerts that fire for this run and its nodes, by severity. None is good. Critical: a "
             "person is being paged now.", [query(f"count by (severity) ({FIRING})", "{{severity}}", instant=True)],
             "none", show="value_and_name", overrides=coloured(SEVERITIES), w=4),
        stat("MFU of its baseline", UNITS["ratio"], "MFU of completed steps over what this run did in the hour before. "
             "100 % is good. Less: the tables below name the culprit, Efficiency shows which phase grew.",
             [query(of_baseline, instant=True)], "none yet", decimals=0, w=4),
        firing_table(FIRING, "What fires for this run or its nodes, and whom it names.", ON_A_RUN, w=8),
        stat("Step", "locale", "The furthest optimizer step of any rank. It should climb all the time.",
             [query(step, instant=True)], "no step yet", w=3),
        stat("Time left", "s", "Time to the run's last step at the pace of the last two minutes. It falls by a minute "
             "a minute; where it does not, the run has slowed down. It needs `Recorder(total_steps=…)`.",
             [query(left, instant=True)], "not known", decimals=1, w=3),
        stat("Since step", "s", "Time since any rank completed a step. Good is the step time and up to the time "
             "between two scrapes more; a checkpoint or an evaluation may stretch it.",
             [query(f"time() - max({of_run('run:progress_timestamp_seconds:max')})", instant=True)], "no step yet",
             decimals=1, w=3),
        stat("Since checkpoint", "s", "Age of the last saved checkpoint: the work that a failure now would lose.",
             [query(f"max({of_run('run:checkpoint_age_seconds:min')})", instant=True)], "none", decimals=0, w=4),
        stat("GPUs lost", "locale", "GPUs' worth of time that now brings no new work, waits in collectives left out: "
             "data, start-up, checkpoints, evaluation, restarts, repeated steps, hangs. Near 0 is good; Efficiency has "
             "the causes.", [query(f"sum({of_run('run:lost_seconds:rate2m', cause='!collective')})", instant=True)],
             "not yet", decimals=1, w=3),
        rank_table(w=14, h=9),
        node_table(w=10, h=9),
    ]  # fmt: skip


USUAL = [
    BASELINE,
    override("usual, high", color={"mode": "fixed", "fixedColor": GREY}, custom__fillBelowTo="usual, low",
             custom__lineWidth=0),
    override("usual, low", color={"mode": "fixed", "fixedColor": GREY}, custom__lineWidth=0),
]  # fmt: skip


def efficiency() -> list[Json]:
    """Return how fast the run really goes, against itself."""
    phases = f"sum by (phase) ({of_run('run:phase_seconds:median')})"
    buckets = f"sum by (le) (rate({of_run(c.TRAIN_STEP_SECONDS.name + '_bucket')}[$__rate_interval]))"
    past = f"{of_run('run:step_mfu:ratio')}[1h] offset 5m"
    worth, lost = of_run("run:productive_seconds:rate2m"), of_run("run:lost_seconds:rate2m")
    paid = f"({worth} + ignoring (cause) sum without (cause) ({lost}) > 0)"
    in_range = f"sum by (cause) (sum_over_time({lost}[$__range])) / 60 > 0"
    return [
        lines("MFU", UNITS["ratio"], "Model FLOP/s as a share of the dense peak of all devices. Good is inside the "
              "grey band: what this run did in 8 of 10 moments of the hour that ended 5 minutes before. By the clock "
              "counts pauses too. Below the band: see which phase grew, then who lags.",
              [query(of_run("run:step_mfu:ratio"), "of completed steps"),
               query(of_run("run:mfu:ratio"), "by the clock"), query(of_run("run:step_mfu:baseline"), "baseline"),
               query(f"quantile_over_time(0.9, {past})", "usual, high"),
               query(f"quantile_over_time(0.1, {past})", "usual, low")],
              NO_MFU, overrides=USUAL, min=0, w=8),
        lines("Tokens per second", "si:tok/s", "Tokens all ranks trained on. Flat is good. A step down that stays: "
              "MFU next to it shows whether the model or the machines changed.",
              [query(of_run("run:tokens:rate1m"), "tokens")], "not collected: needs tokens_per_step", min=0,
              w=8),
        lines("Step time", UNITS["seconds"], "Wall time of an ordinary step, all ranks together. The mean is exact, "
              "usual is the median rank's; max and p90 come from buckets 41 % apart, the last of which ends at 128 s. "
              "p90 far above usual: some steps stall; look for data, checkpoints, a lag.",
              [query(f"histogram_quantile(1, {buckets})", "max"), query(f"histogram_quantile(0.9, {buckets})", "p90"),
               query(f"quantile(0.5, {own(of_run(c.TRAIN_RECENT_STEP))})", "usual"),
               query(of_run("run:step_seconds:mean1m"), "mean")],
              "no step completed in this range", min=0, w=8),
        lines("Where the time goes", UNITS["ratio"], "Share of the median rank's step by phase; collective is its "
              "wait for other ranks. Forward and backward should fill it. A growing data share starves the GPUs: look "
              "at the loader and its storage.",
              [query(f"{phases} / ignoring (phase) group_left () sum({phases}) > 0", "{{phase}}")],
              NO_RANK, stack=True, overrides=coloured(PHASES), min=0, max=1, w=8),
        lines("Goodput, and what the rest is lost to", UNITS["ratio"], "Share of all rank-time that is new training "
              "work, and of what is lost, by cause. A goodput that stays is good. Collective: waits of ranks for each "
              "other; data: storage and loader; checkpoint: save less often or in the background; rework: more often.",
              [query(f"{worth} / {paid}", "goodput"),
               query(f"{lost} / ignoring (cause) group_left () {paid} > 0", "{{cause}}")],
              "not accounted yet", stack=True, overrides=coloured(CAUSES), min=0, max=1, w=8),
        bars("GPU-hours lost in this range", "none", "GPU-hours of the time range above that brought no new work, by "
             "cause; a rank is a GPU. Short bars are good. Start with the longest: that is where the money goes.",
             [query(f"sort_desc({in_range})", "{{cause}}", instant=True)], "nothing lost, or not accounted yet",
             decimals=1, w=8),
    ]  # fmt: skip


def learning() -> list[Json]:
    """Return whether the run learns."""
    spiking = f"{of_run('run:loss:median')} and on (run) {of_run('run:loss_spike_steps:median')} > 0"
    loss, validation, norm = (
        f"({of_run(metric)} > -Inf < Inf)" for metric in (c.RUN_LOSS, c.RUN_VAL_LOSS, c.RUN_GRAD_NORM)
    )
    return [
        lines("Loss", "none", "Training loss over nodes: the median, and the band from lowest to highest. Falling is "
              "good. Red points: a spike goes on. A gap where steps go on: the loss is not finite.",
              [*spread(loss), query(spiking, "spike")],
              NO_LOSS, overrides=[*BAND, SPIKE], w=8),
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
              "that was not finite, on the rank with most. 0 is good. A spike that heals needs nothing. If its steps "
              "climb it does not heal: go back to the last good checkpoint and skip the batch.",
              [query(f"max by (source) ({of_ranks(c.TRAIN_NONFINITE)})", "non-finite {{source}}"),
               query(of_run("run:loss_spike_steps:median"), "steps in spike")],
              NO_RANK, min=0, decimals=0, soft_max=4, w=8),
        lines("The run's own metrics", "none", "Declared with `Recorder(metrics=…)`: the median over ranks. "
              "Each has a scale of its own: click a name to see it alone. What each means is on the exporter's page.",
              [query(f"quantile by (name) (0.5, {of_ranks(c.TRAIN_CUSTOM)})", "{{name}}")],
              "none declared", w=8),
    ]  # fmt: skip


def ranks() -> list[Json]:
    """Return which rank holds the others up, and on what."""
    longest = f"max_over_time({of_ranks(c.RANK_PHASE)}[$__rate_interval])"
    return [
        ranks_by_phase(w=12),
        lines("Longest in one phase", UNITS["seconds"], "How long the rank that is longest in a phase has been in it. "
              "Below the step time is good, except for checkpoint and eval. Lines that climb are a hang: the phase "
              "that climbed first holds the culprit, the others wait for it.",
              [query(f"max by (phase) ({longest})", "{{phase}}")], "no rank is running", overrides=coloured(PHASES),
              min=0, w=12),
        lines("Lag per step", UNITS["seconds"], "How much later than the median rank a rank arrives. Near zero is "
              "good. One that stays above: see its phase, its GPU's clock and temperature.",
              spread(LAG, "topk", "rank {{rank}}"), NO_WAITS, overrides=BAND, w=12),
        sequence_spread(w=12),
    ]  # fmt: skip


def hardware() -> list[Json]:
    """Return whether a GPU holds the run back; each panel draws a band over all GPUs and names the worst three."""
    who, absent = "{{instance}} GPU {{gpu}}", "not collected: no GPU, no driver or not supported; see GPUs read"
    uncounted = "not collected: needs Hopper or newer, or DCGM's profiling fields"
    held = [
        query(f"count({of_cluster(name)} and {HERE}) or 0 * sum({of_run('run:ranks:count')})", text)
        for text, name in (
            ("heat", "node:gpu_thermal_slowdown:ratio"),
            ("power cap", "node:gpu_power_capped:ratio"),
            ("power brake", "node:gpu_power_braked:ratio"),
            ("below its peers", "node:gpu_clock_of_peers:ratio"),
        )
    ]
    dashed = override("slows down at", color={"mode": "fixed", "fixedColor": RED},
                      custom__lineStyle={"fill": "dash", "dash": [8, 8]})  # fmt: skip
    return [
        lines("GPU utilization", UNITS["ratio"], "Share of time in which any kernel ran. High on all is good, but no "
              "proof of work: a GPU that waits in a collective reads 100 %. By name: the idlest.",
              spread(of_gpus(c.GPU_UTILIZATION), "bottomk", who), absent, overrides=BAND, min=0, max=1),
        lines("SM activity", UNITS["ratio"], "Share of SM cycles with work on the SM: what utilization only suggests. "
              "High on all is good. All low: see where the time goes. One low: see what its rank does. By name: the "
              "idlest.", spread(of_gpus("node:gpu_sm_active:ratio"), "bottomk", who), uncounted, overrides=BAND, min=0,
              max=1),
        lines("Power", UNITS["watts"], "Mean board power. All alike is good. One far below its peers computes less; "
              "all falling while utilization stays high means they wait. By name: the lowest.",
              spread(of_gpus("node:gpu_power:watts"), "bottomk", who), absent, overrides=BAND, min=0),
        lines("Temperature", UNITS["celsius"], "Die temperature. Well below the part's own slowdown point is good. One "
              "alone that is hot: the fan, paste or air flow of that slot. By name: the hottest.",
              [*spread(of_gpus(c.GPU_TEMPERATURE, sensor="gpu"), "topk", who),
               query(f"min({slows_down_at(of_gpus)})", "slows down at")], absent, overrides=[*BAND, dashed]),
        lines("SM clock", UNITS["hertz"], "Clock of the compute units. All alike is good. One below its peers slows "
              "the whole run: the next panel says why it is held. By name: the lowest.",
              spread(of_gpus(c.GPU_CLOCK, domain="sm"), "bottomk", who), absent, overrides=BAND, w=8),
        lines("Clocks held down", "none", "GPUs of the run's nodes held down within 2 minutes, by what, and those "
              "clocked below the run's others. 0 is good. Heat: cool the node. Power cap: normal at full load, "
              "not on a few alone. Power brake: call the data centre.", held, "no node is known", min=0, decimals=0,
              soft_max=4, w=8),
        lines("GPUs read", "none", "GPUs that the nodes know and those the last collection could read. Equal is good. "
              "Apart: a GPU has fallen off, or its driver hangs.",
              [query(f"count({of_gpus(c.GPU_UP)})", "known"), query(f"sum({of_gpus(c.GPU_UP)})", "read"),
               query(f"count({of_gpus(c.COLLECTOR_SUCCESS, collector='gpu')} == 0)", "nodes without readings")],
              "no exporter answers", min=0, decimals=0, soft_max=4, w=8),
    ]  # fmt: skip


def dashboard() -> Json:
    """Return the whole dashboard."""
    return shell.dashboard(
        "run",
        "One training run: is it making progress, is it fast, does it learn, which rank or GPU is holding it up?",
        [*top(), row("Efficiency"), *efficiency(), row("Learning"), *learning(),
         row("Ranks"), *ranks(), row("Hardware"), *hardware(), row("Memory"), *model.memory(),
         row("Inside the model"), *model.inside(), row("Failures"), *model.past()],
    )  # fmt: skip
