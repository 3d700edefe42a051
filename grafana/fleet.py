"""The dashboard "Fleet": what the machines are used for, which runs are in trouble, what it costs."""

from __future__ import annotations

import shell
from culprits import ROWS
from limits import EVER_AGAIN, WHOLE
from panels import (
    BLUE,
    CAUSES,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SEVERITIES,
    UNITS,
    Json,
    at_end,
    bar_cells,
    coloured,
    lines,
    one_by_one,
    override,
    query,
    row,
    stat,
    table,
)
from series import RUNS, of_cluster
from shell import field, link
from tachograph.catalog import index as c


def of_runs(name: c.Metric | str, **matchers: str) -> str:
    """Select a series of all runs whose name is asked for."""
    return of_cluster(name, run=".*$find.*", **matchers)


WORTH, LOST = of_runs("run:productive_seconds:rate2m"), of_runs("run:lost_seconds:rate2m")
STEPS = of_runs("run:new_steps_seconds:rate2m")
GPUS = of_runs(RUNS)
HELD = f"sum({GPUS} and on (run) {of_runs('node:ranks_alive:count')})"
"""Only of runs that are alive: ranks of one that ended are shown for a while, when their GPUs may be another's."""
FIRING = of_runs("ALERTS", alertstate="firing")
EVERYWHERE = of_cluster("ALERTS", alertstate="firing", severity="critical|warning|info")
OF_BASELINE = f"(1 - max by (run) ({of_runs('run:speed_loss:ratio')}))"
SCATTER = f"max by (run) ({of_runs('run:step_seconds:p99')}) / max by (run) ({of_runs('run:step_seconds:p50')})"
POWER = of_cluster("node:gpu_power:watts")
OF_RUNS = of_runs("run:gpu_power:watts")
PER_JOULE = f"sum({of_runs('run:tokens:rate1m')} and on (run) ({OF_RUNS})) / sum(avg_over_time({OF_RUNS}[1m]))"
"""Both over a minute: power falls at once in a save, tokens only as far as it fills the minute."""


def hours(rate: str) -> str:
    """Return the hours that a number of GPUs adds up to over the range: a sample a minute, summed."""
    return f"(sum_over_time({rate}[$__range:1m]) / 60)"


def top() -> list[Json]:
    """Return the band that answers in five seconds: is the cluster doing useful work, and what is on fire."""
    mfu = f"sum({of_runs(c.RUN_WORK, unit='flops')}) / sum({of_runs(c.RUN_PEAK_FLOPS)})"
    critical = f"{of_runs('ALERTS', alertstate='firing', severity='critical')} and on (run) {GPUS}"
    delivered, held = hours(f"sum({WORTH})"), hours(HELD)
    return [
        stat("Runs", "none", "Known runs, in any state. If one is missing, its recorder is off, or no exporter runs on "
             "its nodes.", [query(f"count({GPUS})", instant=True)], "no run", w=4),
        stat("GPUs allocated", "locale", "GPUs held by the ranks of all runs, and all that exporters know. Nearly "
             "all allocated is good.",
             [query(HELD, "allocated", instant=True),
              query(f"count({of_cluster(c.GPU_UP)})", "known", instant=True)],
             "none", show="value_and_name", w=4),
        stat("GPUs productive", "locale", "New training work, measured in GPUs: those allocated minus what waits, "
             "restarts, saves and repeated steps take. Close to those allocated is good.",
             [query(f"sum({WORTH})", instant=True)], "not yet", decimals=1, w=4),
        stat("MFU, wall-clock", UNITS["ratio"], "Model FLOP/s of all runs as a share of their devices' peak, pauses "
             "included; it needs flops_per_token. Compare each run with its own past, in the table.",
             [query(mfu, instant=True)], "not collected", decimals=1, w=4),
        stat("Goodput", UNITS["ratio"], "Share of all rank-time that goes into new steps; above 90 % is good. Beside "
             "it: the share of these steps that is lost to waits for other ranks and for data.",
             [query(f"sum({STEPS}) / (sum({WORTH}) + sum({LOST}))", "goodput", instant=True),
              query(f"1 - sum({WORTH}) / (sum({STEPS}) > 0)", "lost in steps", instant=True)],
             "not yet", show="value_and_name", decimals=1, w=4),
        stat("Alerts", "none", "Alerts that fire anywhere, by severity. None is good. Critical: a person is being "
             "paged now; the table names the run.",
             [query(f"count by (severity) ({EVERYWHERE})", "{{severity}}", instant=True)],
             "none", show="value_and_name", overrides=coloured(SEVERITIES), w=4),
        stat("GPU-hours delivered", "locale", "GPU-hours of new training work within the time range, and those "
             "allocated to runs. Equal is good. The difference was lost, to the causes below.",
             [query(delivered, "delivered", instant=True), query(held, "allocated", instant=True)],
             "not yet", show="value_and_name", decimals=1, w=8),
        stat("Runs with a page", "none", "Runs with a critical alert now. 0 is good; otherwise they are first in the "
             "table.", [query(f"count(group by (run) ({critical})) or vector(0)", instant=True)], "none", w=4),
        stat("Power", UNITS["watts"], "Mean board power of all GPUs that report it. It should follow the productive "
             "GPUs; without them it is wasted.", [query(f"sum({POWER})", instant=True)],
             "not collected", decimals=1, w=4),
        stat("Energy", "watth", "Energy of all GPUs within the time range, from their power once a minute. Compare it "
             "with the GPU-hours delivered next to it.", [query(hours(f"sum({POWER})"), instant=True)],
             "not collected", decimals=1, w=4),
        stat("Tokens per joule", "none", "Tokens trained on per joule of those runs' GPUs. Higher is good. A fall with "
             "the same model: slow ranks or waits, at full power.", [query(PER_JOULE, instant=True)],
             "not collected", decimals=2, w=4),
    ]  # fmt: skip


def worst_runs() -> Json:
    """Return the table of runs: those that page first, then those that lose most GPUs."""
    gpus = f"max by (run) ({GPUS})"
    critical, warning = (
        f"count by (run) ({of_runs('ALERTS', alertstate='firing', severity=severity)})"
        for severity in ("critical", "warning")
    )
    other = f"sum by (run) ({of_runs('run:lost_seconds:rate2m', cause='!collective')})"
    slower = f"clamp_min(1 - {OF_BASELINE}, 0) * on (run) {gpus}"
    nought = f"0 * {gpus}"
    hung = (
        f"{gpus} and on (run) {of_runs('run:hung_seconds:min')}"  # whose rates of two minutes still have steps in them
    )
    lost = f"({hung} or ({other} or {nought}) + on (run) ({slower} or {nought}))"  # GPUs
    score = f"({critical} * 1e9 or {nought}) + on (run) ({warning} * 1e6 or {nought}) + on (run) {lost}"
    chosen = f"topk({ROWS}, {score})"
    asked = (
        chosen,
        gpus,
        critical,
        warning,
        f"{lost} / on (run) {gpus}",
        f"max by (run) ({of_runs('run:step_mfu:ratio')})",
        OF_BASELINE,
        f"max by (run) ({of_runs('run:goodput:ratio1h')})",
        f"max by (run) ({of_runs('run:step_wait:ratio1h')})",
        f"max by (run) ({of_runs('rank:late_ratio:mean')})",
        f"min by (run) ({of_runs('run:progress_age_seconds:min')})",
        f"min by (run) ({of_runs('run:checkpoint_age_seconds:min')})",
        f"max by (run) ({of_runs('run:restarts:max')})",
    )
    columns = {"run": "Run", "Value #B": "GPUs", "Value #C": "Critical", "Value #D": "Warnings"}
    columns |= {"Value #E": "Lost or slower", "Value #F": "MFU", "Value #G": "Vs baseline"}
    columns |= {"Value #H": "Goodput, 1 h", "Value #I": "Lost in steps", "Value #J": "Worst lag"}
    columns |= {"Value #K": "Since last step", "Value #L": "Since save", "Value #M": "Restarts"}
    leads = {"run": "The run", "ranks": "Its ranks", "incident": "What happened, on one time axis"}
    links = [link(title, to, run=field("Run")) for to, title in leads.items()]
    share = {"unit": UNITS["ratio"], "decimals": 0}
    shares = {"MFU": 60, "Vs baseline": 95, "Goodput, 1 h": 105, "Lost in steps": 110, "Worst lag": 80}
    return table(
        "Runs, worst first",
        f"The {ROWS} runs with pages, with warnings, or with the most GPU time lost. Lost or slower: the share of its "
        "GPUs' time that start-up, data, saves, restarts and hangs take now, and by how much the run is slower than "
        "its own past. No alert and near 0 is good. A click opens it.",
        one_by_one(asked, "run", chosen),
        "No run is known.",
        columns,
        join="run",
        overrides=[
            override("Run", links=links, custom__width=210),
            override("GPUs", unit="locale", custom__width=70),
            override("Critical", mappings=over(RED), custom__cellOptions={"type": "color-text"}, custom__width=75),
            override("Warnings", mappings=over(ORANGE), custom__cellOptions={"type": "color-text"}, custom__width=80),
            bar_cells("Lost or slower", WHOLE, **share, custom__width=140),
            *(override(name, **share, custom__width=wide) for name, wide in shares.items()),
            override("Since last step", unit="s", decimals=0, custom__width=125),
            override("Since save", unit="s", decimals=0, custom__width=90),
            override("Restarts", custom__width=75),
        ],
        w=24,
        h=10,
    )


OF_RUN_HELD = f"({GPUS} and on (run) {of_runs('node:ranks_alive:count')})"
WAITS = of_cluster("kube_pod_status_phase", phase="Pending")
ASKS = of_cluster("kube_pod_container_resource_requests", resource="nvidia_com_gpu")
WAITING_PODS = f"(max by (namespace, pod) ({WAITS}) == 1 and on (namespace, pod) {ASKS})"


def taken() -> Json:
    """Return the table of what each run took within the range, and what came of it."""
    held = f"sum by (run) {OF_RUN_HELD}"
    power = f"sum by (run) ({OF_RUNS})"
    chosen = f"topk({ROWS}, {hours(held)})"
    delivered = f"sum by (run) ({WORTH})"
    tokens = f"sum by (run) ({of_runs('run:tokens:rate1m')})"
    asked = (
        chosen,
        hours(delivered),
        f"{hours(delivered)} / on (run) {hours(held)}",
        hours(power),
        f"{hours(tokens)} / on (run) {hours(power)}",
    )
    columns = {"run": "Run", "Value #A": "GPU-hours", "Value #B": "Delivered", "Value #C": "Share"}
    columns |= {"Value #D": "Energy", "Value #E": "Tokens per joule"}
    return table(
        "What runs took",
        f"The {ROWS} runs that held most GPU-hours within the time range, from samples once a minute: how many became "
        "new training work, the energy of their GPUs, and the tokens trained on for it. Near 100 % is good. Where the "
        "share is low, the run's own dashboard says what it was lost to.",
        one_by_one(asked, "run", chosen),
        "No run held a GPU within the time range.",
        columns,
        join="run",
        overrides=[
            override("Run", links=[link("The run", "run", run=field("Run"))], custom__width=210),
            override("GPU-hours", unit="locale", decimals=1, custom__width=100),
            override("Delivered", unit="locale", decimals=1, custom__width=100),
            bar_cells("Share", WHOLE, unit=UNITS["ratio"], decimals=0),
            override("Energy", unit="watth", decimals=1, custom__width=110),
            override("Tokens per joule", decimals=2, custom__width=130),
        ],
        w=16,
        h=8,
    )


def users() -> Json:
    """Return the table of what each user took within the range, and what came of it."""

    def by_owner(of_runs_: str) -> str:
        return f"sum by (owner) ({of_runs_} * on (run) group_left (owner) {of_runs('run:owner:info')})"

    held, delivered = by_owner(f"max by (run) {OF_RUN_HELD}"), by_owner(f"max by (run) ({WORTH})")
    chosen = f"topk({ROWS}, {hours(held)})"
    asked = (chosen, hours(delivered), f"{hours(delivered)} / on (owner) {hours(held)}")
    columns = {"owner": "User", "Value #A": "GPU-hours", "Value #B": "Delivered", "Value #C": "Share"}
    return table(
        "What users took",
        f"The {ROWS} users, by uid, whose runs held most GPU-hours within the time range, from samples once a minute, "
        "and how many became new training work. Near 100 % is good. In containers many users may have one uid.",
        one_by_one(asked, "owner", chosen),
        "No run held a GPU within the time range.",
        columns,
        join="owner",
        overrides=[
            override("User", custom__width=90),
            override("GPU-hours", unit="locale", decimals=1, custom__width=100),
            override("Delivered", unit="locale", decimals=1, custom__width=100),
            bar_cells("Share", WHOLE, unit=UNITS["ratio"], decimals=0, custom__width=120),
        ],
        w=8,
        h=8,
    )


def queue() -> list[Json]:
    """Return what waits for GPUs, where Slurm or Kubernetes is scraped for it."""
    slurm = f"sum({of_cluster('slurm_jobs_pending')}) or sum({of_cluster('slurm_queue_pending')})"
    waited = (
        f"time() - max by (namespace, pod) ({of_cluster('kube_pod_created')}) and on (namespace, pod) {WAITING_PODS}"
    )
    return [
        lines("Queue", "locale", "Jobs that wait in Slurm, held ones included, and pods with GPUs that wait in "
              "Kubernetes. A queue beside GPUs that are not allocated: they are drained, reserved, or do not fit.",
              [query(slurm, "Slurm jobs"), query(f"count({WAITING_PODS})", "pods with GPUs")],
              "not collected: needs Slurm's metrics, or kube-state-metrics", min=0, w=12),
        lines("Longest wait", "s", "For how long the pod with GPUs that waits longest has waited. Slurm does not say.",
              [query(f"max({waited})", "Kubernetes")], "none waits, or no kube-state-metrics", min=0, w=12),
    ]  # fmt: skip


def over(colour: str) -> list[Json]:
    """Return the mapping that colours a count."""
    return [{"type": "range", "options": {"from": 1, "to": None, "result": {"color": colour}}}]


def use() -> list[Json]:
    """Return how the machines are used, over time."""
    worst = at_end(f"bottomk(10, {OF_BASELINE})")
    shades = {"known": GREY, "allocated": BLUE, "productive": GREEN}
    return [
        lines("GPUs", "locale", "GPUs that exporters know, GPUs that runs hold, and new work measured in GPUs. Close "
              "together is good. Known above allocated: idle machines, or jobs without a recorder; allocated above "
              "productive: see what is lost.",
              [query(f"count({of_cluster(c.GPU_UP)})", "known"), query(HELD, "allocated"),
               query(f"sum({WORTH})", "productive")],
              "no run is known", overrides=coloured(shades), min=0, w=8),
        lines("GPUs lost, by cause", "locale", "Time that brought no new work, measured in GPUs: GPU-hours lost per "
              "hour. Collectives are part of how runs are built; the others should be near 0.",
              [query(f"sum by (cause) ({LOST}) > 0", "{{cause}}")], "not accounted yet", stack=True,
              overrides=coloured(CAUSES), min=0, w=8),
        lines("Speed of the slowest runs", UNITS["ratio"], "MFU, or throughput, relative to the run's hour before, for "
              "the ten that are furthest below it now. Lines near 100 % are good. One that falls: open it.",
              [query(f"{OF_BASELINE} and on (run) {worst}", "{{run}}")], "no run has a baseline yet", min=0,
              soft_max=WHOLE, w=8),
        lines("Step time, p99 over p50", "none", "How much longer than the median step that one of all ranks' is which "
              "1 % exceed, for the ten runs with most now. Near 1 is good. A run far above the others: single steps "
              "stall; open it. Needs native histograms to be exact.",
              [query(f"{SCATTER} and on (run) {at_end(f'topk(10, {SCATTER})')}", "{{run}}")],
              "no run has made a step", min=0, soft_max=2, decimals=2, w=8),
        culprits(w=8, h=8),
        lines("Power", UNITS["watts"], "Mean board power of all GPUs. It should follow the productive GPUs. Full power "
              "with few productive: ranks wait in collectives, which take nearly as much power as work.",
              [query(f"sum({POWER})", "all GPUs"), query(f"sum({OF_RUNS})", "of runs")],
              "not collected: no GPU reports its power", min=0, w=8),
        lines("Tokens per joule", "none", "Tokens trained on per joule of those runs' GPUs. Flat is good. It falls "
              "when GPUs wait, and changes with the model.", [query(PER_JOULE, "all runs")],
              "not collected: needs tokens and every GPU's power", min=0, w=12),
        lines("Coverage", "locale", "GPUs on which only unrecorded processes compute, and those that runs hold. None "
              "unrecorded is good; a node's status page says whose they are. Inference counts, too, although it has "
              "nothing to record.",
              [query(f"sum({of_cluster(c.NODE_UNRECORDED_GPUS)})", "not recorded"), query(HELD, "allocated to runs")],
              "not known: no exporter sees its GPUs' processes", min=0, w=12),
    ]  # fmt: skip


def culprits(**more: object) -> Json:
    """Return the nodes that were blamed for the most incidents."""
    blamed = of_cluster("node:blamed_timestamp_seconds:min")
    most = f"sum by (instance) (1 + (resets((-{blamed})[30d:5m]) or 0 * last_over_time({blamed}[30d])))"
    return table(
        "Nodes blamed most often, 30 days",
        "Incidents of the last 30 days for which a node, or one of its GPUs or links, was to blame; the ten nodes with "
        "the most. One each is chance. If one stands out, run `tachograph history`.",
        [query(f"sort_desc(topk(10, {most}))", table=True)],
        "No node was blamed.",
        {"instance": "Node", "Value": "Incidents"},
        overrides=[
            override("Node", links=[link("Open this node", "node", instance=field("Node"))]),
            bar_cells("Incidents", EVER_AGAIN, decimals=0),
        ],
        **more,
    )


def dashboard() -> Json:
    """Return the whole dashboard."""
    return shell.dashboard(
        "fleet",
        "All runs of a cluster: are its GPUs doing useful work, which runs are in trouble, what does it cost?",
        [*top(), worst_runs(), row("Use over time"), *use(), taken(), users(), row("Queue", *queue())],
        variables=(shell.FIND,),
        annotations=[],
        since="now-6h",
        refresh="1m",
    )
