"""The dashboard "Run": does it run, is it fast, does it learn, which rank or GPU holds it up.

A panel is one entry in one of the functions below; its place follows from its order. Names and units come from the
catalog, finished figures from the recording rules. Every panel draws fewer than 50 series, for 8 ranks or for 16,384.
"""

from __future__ import annotations

from panels import (
    BAND,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    UNITS,
    Json,
    annotation,
    coloured,
    lines,
    override,
    placed,
    query,
    row,
    spread,
    stat,
    table,
    variable,
    words,
)
from tachograph import catalog as c

UID = "tachograph-run"
ROWS = 40  # of the rank table: a person reads no more, and a browser need not carry 16,384

RUNBOOK = "https://github.com/tachograph/tachograph/blob/main/runbooks/${__data.fields.Alert}.md"

STATES = dict(zip(c.STATES, (GREEN, ORANGE, RED, RED, BLUE), strict=True))
SEVERITIES = {"critical": RED, "warning": ORANGE, "info": BLUE}
PHASES = dict(
    zip(c.PHASES, (GREY, ORANGE, "#ffcb7d", BLUE, PURPLE, GREEN, RED, "yellow", "#5794f2", "#5c5c5c"), strict=True)
)


def pick(name: str, matchers: dict[str, str]) -> str:
    """Return a selector; a value that begins with ! is what the label must not match."""
    terms = [
        f'{label}!~"{value[1:]}"' if value[:1] == "!" else f'{label}=~"{value}"' for label, value in matchers.items()
    ]
    return f"{name}{{{','.join(terms)}}}"


def of_run(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for the whole run."""
    name = metric if isinstance(metric, str) else metric.name
    return pick(name, matchers).replace("{", '{run="$run"' + ("," if matchers else ""), 1)


def of_ranks(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for the chosen nodes and ranks of the run."""
    return of_run(metric, instance="$instance", rank="$rank", **matchers)


def of_gpus(metric: c.Metric | str, **matchers: str) -> str:
    """Select a family for every GPU of the nodes on which chosen ranks sit, whether or not a rank holds that GPU."""
    name = metric if isinstance(metric, str) else metric.name
    where = f"on (instance) group by (instance) ({of_ranks(c.RANK_INFO)})"
    return f"({pick(name, {'instance': '$instance', **matchers})} and {where})"


# Alerts of this run, and those of nodes and GPUs, which know no run, where its ranks are or lately were.
HERE = f"on (instance) group by (instance) (last_over_time({of_run(c.RANK_INFO)}[1h]))"
FIRING = (
    f"({of_run('ALERTS', alertstate='firing')} or"
    f' ALERTS{{alertstate="firing",run="",severity=~"critical|warning|info"}} and {HERE})'
)

CONDITIONS = (
    ("hung", RED, of_run("ALERTS", alertstate="firing", alertname="RunHung")),
    ("rank dead", RED, of_run(c.RANK_STATE, state="dead") + " == 1"),
    ("rank failed", RED, of_run(c.RANK_STATE, state="failed") + " == 1"),
    ("rank frozen", ORANGE, of_run(c.RANK_STATE, state="frozen") + " == 1"),
    ("running", GREEN, of_run(c.RANK_STATE, state="running") + " == 1"),
    ("finished", BLUE, of_run(c.RANK_STATE, state="finished") + " == 1"),
)
"""What a run can be in, worst first: the first that holds for any rank stands for the run."""


def firing_table() -> Json:
    """Return the table of what fires; however many warnings there are, they never crowd out what pages."""
    since = " or ".join(
        f'topk({ROWS // 2}, time() - ALERTS_FOR_STATE{{severity{which}"critical"}} and ignoring (alertstate) {FIRING})'
        for which in ("=", "!=")
    )
    columns = {"severity": "Severity", "alertname": "Alert", "rank": "Rank", "instance": "Node", "gpu": "GPU"}
    return table(
        "Firing now",
        "What fires for this run or its nodes, and whom it names. Empty is good. Each alert has a runbook of its name: "
        "start there.",
        [query(since, table=True)],
        "Nothing fires.",
        columns | {"Value": "For"},
        overrides=[
            words("Severity", SEVERITIES, custom__width=80),
            override("Alert", links=[{"title": "Runbook", "url": RUNBOOK, "targetBlank": True}]),
            override("Rank", custom__width=60),
            override("GPU", custom__width=55),
            override("For", unit="s", decimals=0, custom__width=75),
        ],
        sort=[{"displayName": "Severity", "desc": False}],
        w=9,
        h=6,
    )


def top() -> list[Json]:
    """Return the band that answers in five seconds: does it run, how far is it, does anything fire."""
    condition = " or ".join(f"group({found}) * {code}" for code, (_, _, found) in enumerate(CONDITIONS, start=1))
    names = {str(i): {"text": word, "color": colour} for i, (word, colour, _) in enumerate(CONDITIONS, start=1)}
    info = f"group by (instance, rank, world_size) ({of_run(c.RANK_INFO)})"
    up = f"sum by (world_size) ({of_run(c.RANK_UP)} * on (instance, rank) group_left (world_size) {info})"
    return [
        stat("Run", "none", "The worst condition that holds for any rank. Running is good. Hung, dead, failed or "
             "frozen: the alerts beside it and the rank table below name the rank.",
             [query(condition, instant=True)], "no rank seen", mappings=[{"type": "value", "options": names}]),
        stat("Ranks reporting", "none", "Ranks whose process lives, of the world size they were started with. Fewer "
             "than the world size: the rank table shows which node's are missing.",
             [query(f'count_values by (world_size) ("up", {up})', "{{up}} of {{world_size}}", instant=True)],
             "no rank seen", show="name"),
        stat("Alerts", "none", "Alerts that fire for this run and its nodes, by severity. None is good. Critical: a "
             "person is being paged now.", [query(f"count by (severity) ({FIRING})", "{{severity}}", instant=True)],
             "none", show="value_and_name", overrides=coloured(SEVERITIES)),
        firing_table(),
        stat("Step", "locale", "The furthest optimizer step of any rank. It should climb all the time.",
             [query(f"max({of_run(c.TRAIN_STEP)})", instant=True)], "no step yet"),
        stat("Since last step", "s", "Time since any rank completed a step. Good is the step time and up to 5 s more, "
             "the time between scrapes; a checkpoint or an evaluation may stretch it.",
             [query(f"time() - max({of_run(c.RANK_PROGRESS)})", instant=True)], "no step yet", decimals=1),
        stat("Since checkpoint", "s", "Age of the last saved checkpoint: the work that a failure now would lose.",
             [query(f"time() - max({of_run(c.TRAIN_CHECKPOINT_TIMESTAMP)})", instant=True)], "none reported",
             decimals=0),
    ]  # fmt: skip


BASELINE = override("baseline", color={"mode": "fixed", "fixedColor": GREY}, custom__lineStyle={"fill": "dash"})


def efficiency() -> list[Json]:
    """Return how fast the run really goes, against itself."""
    phases = f"sum by (phase) (rate({of_run(c.TRAIN_PHASE_SECONDS)}[$__rate_interval]))"
    buckets = f"sum by (le) (rate({of_run(c.TRAIN_STEP_SECONDS.name + '_bucket')}[$__rate_interval]))"
    return [
        lines("MFU", UNITS["ratio"], "Model FLOP/s as a share of the dense peak of all devices. Good is what this run "
              "did in the hour before: its baseline, once there are ten minutes. By the clock counts pauses too. Below "
              "the baseline: see which phase grew, then who lags.",
              [query(of_run("run:step_mfu:ratio"), "of completed steps"),
               query(of_run("run:mfu:ratio"), "by the clock"), query(of_run("run:step_mfu:baseline"), "baseline")],
              "not collected: needs flops_per_token and a known peak", overrides=[BASELINE], min=0),
        lines("Tokens per second", "si:tok/s", "Tokens all ranks trained on. Flat is good.",
              [query(of_run("run:tokens:rate1m"), "tokens")], "not collected: tokens_per_step is not given", min=0),
        lines("Step time", UNITS["seconds"], "Wall time of a step, all ranks together. The mean is exact, quantiles "
              "come from buckets 41 % apart. p90 far above p50: some steps stall; look for data, checkpoints, a lag.",
              [query(f"histogram_quantile(0.9, {buckets})", "p90"), query(f"histogram_quantile(0.5, {buckets})", "p50"),
               query(of_run("run:step_seconds:mean1m"), "mean")],
              "no step completed in this range", min=0),
        lines("Where the time goes", UNITS["ratio"], "Share of all ranks' time by phase. Forward and backward should "
              "fill it. A growing data share starves the GPUs: look at the loader and its storage.",
              [query(f"{phases} / ignoring (phase) group_left () sum({phases}) > 0", "{{phase}}")],
              "not collected: the loop marks no phase", stack=True, overrides=coloured(PHASES), min=0, max=1),
    ]  # fmt: skip


def learning() -> list[Json]:
    """Return whether the run learns."""
    loss, norm = (f"({of_ranks(metric)} > -Inf < Inf)" for metric in (c.TRAIN_LOSS, c.TRAIN_GRAD_NORM))
    return [
        lines("Loss", "none", "Training loss over ranks: the median, and the band from lowest to highest. Falling is "
              "good. A gap where steps go on: the loss is not finite.", spread(loss),
              "not collected: no loss is logged", overrides=BAND),
        lines("Gradient norm", "none", "Gradient norm over ranks. Steady is good. If it jumps with the loss, the spike "
              "is real: look at the batch, the learning rate, the last restart.", spread(norm),
              "not collected: no grad_norm is logged", overrides=BAND),
        lines("Learning rate", "sci", "The schedule as the loop logs it. A step here explains a step in the loss.",
              [query(f"max({of_ranks(c.TRAIN_LEARNING_RATE)})", "learning rate")],
              "not collected: no learning_rate is logged", min=0),
        lines("Spikes and non-finite steps", "none", "Counts since the attempt began, on the rank with most. Flat is "
              "good. A spike that heals needs nothing. If steps in spike climb it does not heal: go back to the last "
              "good checkpoint and skip the batch.",
              [query(f"max({of_ranks(c.TRAIN_LOSS_SPIKES)})", "loss spikes"),
               query(f"max by (source) ({of_ranks(c.TRAIN_NONFINITE)})", "non-finite {{source}}"),
               query(of_run("run:loss_spike_steps:median"), "steps in spike")],
              "not collected: no loss is logged", min=0, decimals=0, soft_max=4),
    ]  # fmt: skip


WAIT, LAG = of_ranks("rank:collective_wait_per_step_seconds:mean"), of_ranks("rank:lag_seconds:mean")
ENQUEUED = of_run(c.TRAIN_COLLECTIVE_ENQUEUED)
BEHIND = f"max by (rank) ({of_ranks('rank:collectives_behind:max')})"


def rank_table() -> Json:
    """Return the table that names the culprit: the most conspicuous ranks of all that are chosen."""
    nought = f"max by (rank) ({of_ranks(c.RANK_UP)}) * 0"
    gone = f"max by (rank) ({of_ranks(c.RANK_STATE, state='dead|failed|frozen')})"
    phase = f"max by (rank, phase) ({of_ranks(c.RANK_PHASE)})"
    # One number to choose rows by: gone, then behind in a collective, then lag, then long in its phase.
    weighed = (f"{BEHIND} * 1e6", f"max by (rank) ({LAG}) * 1e3", f"max by (rank) ({phase})")
    score = f"{gone} * 1e9" + "".join(f" + on (rank) ({part} or on (rank) {nought})" for part in weighed)
    chosen = f"topk({ROWS}, {score})"
    asked = (
        f"{chosen} * on (rank) group_right () group by (rank, instance, gpu) ({of_ranks(c.RANK_INFO)})",
        f"max by (rank, state) ({of_ranks(c.RANK_STATE)} == 1)",
        f"count by (rank) ({of_ranks('ALERTS', alertstate='firing')})",
        phase,
        f"max by (rank) ({of_ranks(c.TRAIN_STEP)})",
        f"max by (rank) ({WAIT})",
        f"max by (rank) ({LAG})",
        BEHIND,
    )
    columns = {"rank": "Rank", "instance": "Node", "gpu": "GPU", "state": "State", "Value #C": "Alerts"}
    columns |= {"phase": "Phase", "Value #D": "In phase for", "Value #E": "Step", "Value #F": "Wait per step"}
    columns |= {"Value #G": "Lag per step", "Value #H": "Collectives behind"}
    link = {
        "title": "Show only this rank",
        "url": f"/d/{UID}?${{datasource:queryparam}}&${{run:queryparam}}&var-instance=${{__data.fields.Node}}"
        "&var-rank=${__data.fields.Rank}&${__url_time_range}",
    }
    firing = [{"type": "range", "options": {"from": 1, "to": None, "result": {"color": RED}}}]
    return table(
        "Ranks, the most conspicuous first",
        f"The {ROWS} ranks that most deserve a look: gone, behind in a collective, lagging, long in one phase. All "
        "running and alike is good. In a hang the culprit is the one behind, or in another phase. A click "
        "shows only that rank.",
        [
            query(f"{expression} and on (rank) {chosen}" if i else expression, table=True)
            for i, expression in enumerate(asked)
        ],
        "No rank of this run has been seen.",
        columns,
        join="rank",
        overrides=[
            override("Rank", links=[link], custom__width=70),
            words("State", STATES),
            words("Phase", PHASES),
            override("Alerts", mappings=firing, custom__cellOptions={"type": "color-text"}),
            override("Step", unit="locale"),
            override("In phase for", unit="s", decimals=1),
            override("Wait per step", unit="s", decimals=1),
            override("Lag per step", unit="s", decimals=1),
        ],
        w=24,
        h=10,
    )


def ranks() -> list[Json]:
    """Return which rank holds the others up, and on what."""
    # Ranks report up to 1 s and are scraped up to 5 s apart, so to lack what others got within 15 s means nothing. A
    # rank that restarted counts from 0 again: its past says nothing about where the others should be.
    reached = f"max by (group) ({ENQUEUED} offset 15s <= {ENQUEUED})"
    longest = f"max_over_time({of_ranks(c.RANK_PHASE)}[$__rate_interval])"
    unwatched = "not collected: recorder.watch is not called"
    return [
        rank_table(),
        lines("Longest in one phase", UNITS["seconds"], "How long the rank that is longest in a phase has been in it. "
              "Below the step time is good, but for checkpoint and eval. Lines that climb are a hang: the phase that "
              "climbed first holds the culprit, the others wait for it.",
              [query(f"max by (phase) ({longest})", "{{phase}}")], "no rank is running", overrides=coloured(PHASES),
              min=0),
        lines("Collective wait per step", UNITS["seconds"], "Time per step in which a rank can only wait for the "
              "others. A narrow band is good. The ranks named wait least: they arrive last and hold the others up.",
              spread(WAIT, "bottomk", "rank {{rank}}"), unwatched, overrides=BAND, min=0),
        lines("Lag per step", UNITS["seconds"], "How much later than the median rank a rank arrives. Near zero is "
              "good. One that stays above: see its phase, its GPU's clock and temperature.",
              spread(LAG, "topk", "rank {{rank}}"), unwatched, overrides=BAND),
        lines("Collectives behind", "none", "How many collectives the last rank lacks to where the first one of its "
              "process group was 15 s ago. 0 is good. A line that stands above 0 is a hang: the table names who "
              "never entered.",
              [query(f"clamp_min(max({reached} - on (group) group_right () {ENQUEUED}), 0)", "behind")],
              "not collected: no process group reports sequence numbers", min=0, decimals=0, soft_max=4),
    ]  # fmt: skip


def hardware() -> list[Json]:
    """Return whether a GPU holds the run back; each panel draws a band over all GPUs and names the worst three."""
    who, absent = "{{instance}} GPU {{gpu}}", "not collected: no GPU, no driver or not supported; see GPUs read"
    uncounted = "not collected: needs Hopper or newer, or DCGM's profiling fields"
    used = f"({of_gpus(c.GPU_MEMORY_USED)} / on (instance, gpu, uuid) {of_gpus(c.GPU_MEMORY_TOTAL)})"
    event = of_gpus(c.GPU_CLOCK_EVENT, reason="!gpu_idle|applications_clocks_setting|display_clock_setting|sync_boost")
    held = f'sum by (reason) ({event}) > 0 or label_replace(0 * sum({event}), "reason", "none", "", "")'
    slowdown = of_gpus(c.GPU_TEMPERATURE_THRESHOLD, threshold="slowdown")
    dashed = override("slows down at", color={"mode": "fixed", "fixedColor": RED},
                      custom__lineStyle={"fill": "dash", "dash": [8, 8]})  # fmt: skip
    return [
        lines("GPU utilization", UNITS["ratio"], "Share of time in which any kernel ran. High on all is good, yet no "
              "proof of work: a GPU that waits in a collective reads 100 %. By name: the idlest.",
              spread(of_gpus(c.GPU_UTILIZATION), "bottomk", who), absent, overrides=BAND, min=0, max=1),
        lines("SM activity", UNITS["ratio"], "Share of SM cycles with work on the SM: what utilization only pretends. "
              "High on all is good. All low: see where the time goes. One low: see what its rank does. By name: the "
              "idlest.", spread(of_gpus("node:gpu_sm_active:ratio"), "bottomk", who), uncounted, overrides=BAND, min=0,
              max=1),
        lines("Tensor activity", UNITS["ratio"], "Share of cycles in which the tensor cores work. A little above the "
              "MFU is good. Far above it: work that the model does not count, such as recomputation. By name: the "
              "idlest.", spread(of_gpus("node:gpu_tensor_active:ratio"), "bottomk", who), uncounted, overrides=BAND,
              min=0, max=1),
        lines("Power", UNITS["watts"], "Mean board power. All alike is good. One far below its peers computes less; "
              "all falling while utilization stays high means they wait. By name: the lowest.",
              spread(of_gpus("node:gpu_power:watts"), "bottomk", who), absent, overrides=BAND, min=0),
        lines("Temperature", UNITS["celsius"], "Die temperature. Well below the part's own slowdown point is good. One "
              "alone that is hot: the fan, paste or air flow of that slot. By name: the hottest.",
              [*spread(of_gpus(c.GPU_TEMPERATURE, sensor="gpu"), "topk", who),
               query(f"min({slowdown})", "slows down at")], absent, overrides=[*BAND, dashed]),
        lines("SM clock", UNITS["hertz"], "Clock of the compute units. All alike is good. One below its peers slows "
              "the whole run: the next panel says why it is held. By name: the lowest.",
              spread(of_gpus(c.GPU_CLOCK, domain="sm"), "bottomk", who), absent, overrides=BAND),
        lines("Clocks held down", "none", "GPUs whose clocks the driver holds down, by its reason. 0 is good. Thermal: "
              "cool the node. Power cap: normal at full load, not on a few alone. Power brake: call the data centre.",
              [query(held, "{{reason}}")], absent, min=0, decimals=0, soft_max=4),
        lines("ECC errors", "none", "Memory errors since the driver was loaded. Flat is good. Uncorrected and rising: "
              "drain the node, reset the GPU; if they come back, return the part.",
              [query(f"sum by (error) ({of_gpus(c.GPU_ECC_ERRORS, scope='volatile')})", "{{error}}")], absent,
              min=0, decimals=0, soft_max=4),
        lines("GPU memory used", UNITS["ratio"], "Share of device memory in use. Flat is good. A slow climb is a leak "
              "and ends in an out-of-memory error. By name: the fullest.", spread(used, "topk", who), absent,
              overrides=BAND, min=0, max=1),
        lines("GPUs read", "none", "GPUs that the nodes know and those the last collection could read. Both alike is "
              "good. Apart: a GPU has fallen off, or its driver hangs.",
              [query(f"count({of_gpus(c.GPU_UP)})", "known"), query(f"sum({of_gpus(c.GPU_UP)})", "read"),
               query(f"count({of_gpus(c.COLLECTOR_SUCCESS, collector='gpu')} == 0)", "nodes without readings")],
              "no exporter answers", min=0, decimals=0, soft_max=4),
    ]  # fmt: skip


def dashboard() -> Json:
    """Return the whole dashboard."""
    many = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}
    attempts, attempts_before = (f"group by (attempt) ({of_run(c.RANK_INFO)}{at})" for at in ("", " offset 1m"))
    return {
        "uid": UID,
        "title": "Run",
        "description": "One training run: does it run, is it fast, does it learn, which rank or GPU holds it up.",
        "tags": ["tachograph"],
        "schemaVersion": 41,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "10s",
        "links": [{"type": "dashboards", "title": "Tachograph", "tags": ["tachograph"], "asDropdown": True, "url": "",
                   "includeVars": True, "keepTime": True, "targetBlank": False, "icon": "", "tooltip": ""}],
        "templating": {"list": [
            {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "current": {}},
            variable("run", "Run", f"label_values({c.RANK_INFO.name}, run)"),
            variable("instance", "Node", f"label_values({of_run(c.RANK_INFO)}, instance)", **many),
            variable("rank", "Rank", f"label_values({of_run(c.RANK_INFO, instance='$instance')}, rank)", **many),
        ]},
        "annotations": {"list": [
            annotation("Firing alerts", RED, FIRING, "{{alertname}}", "rank {{rank}} {{instance}}", on=True),
            annotation("Attempts", BLUE, f"{attempts} unless on (attempt) {attempts_before}",
                       "attempt {{attempt}} began", on=True),
            annotation("Checkpoints", GREEN, f"max(changes({of_run(c.TRAIN_CHECKPOINT_STEP)}[30s])) > 0",
                       "checkpoint saved", on=False),
        ]},
        "panels": placed([*top(), row("Efficiency"), *efficiency(), row("Learning"), *learning(),
                          row("Ranks"), *ranks(), row("Hardware"), *hardware()]),
    }  # fmt: skip
