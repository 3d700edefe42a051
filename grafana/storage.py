"""The dashboard "Data and checkpoint": does training wait for data, and how much would a failure now lose.

A panel is one entry in one of the functions below. Limits stand in the rules; what a run set for itself is drawn as its
own series.
"""

from __future__ import annotations

import shell
from absences import DETAIL, NO_HOST, NO_LOADER, NO_PRESSURE, NO_RANK, UNSAVED, UNTIMED
from condition import firing_of_run
from culprits import ROWS, STATE_COLOURS, state_of_ranks
from panels import (
    BAND,
    BLUE,
    GREY,
    PHASES,
    RED,
    UNITS,
    Json,
    coloured,
    lines,
    one_by_one,
    override,
    query,
    row,
    spread,
    stat,
    table,
    words,
)
from series import ETHERNET, disks_used, host_rate, not_over, of_chosen_ranks, of_nodes, of_ranks, of_run, own
from series import of_gpus as of_hosts  # the same for any series of a node
from shell import SAME, field, link
from tachograph.catalog import index as c

RANK = "rank {{rank}}"
NO_QUEUE = "the loader has no workers, or is not recorded: needs data(loader) or attach(trainer)"
NO_WORKERS = f"{DETAIL}, or the loader has no workers"
NO_SIZE = f"{DETAIL}, or no size is given: needs checkpoint_saved(bytes=…)"

DASHES = {"fill": "dash", "dash": [8, 8]}
USUAL = [
    override(name, color={"mode": "fixed", "fixedColor": colour}, custom__lineStyle=DASHES)
    for name, colour in (("usual", GREY), ("interval", GREY), ("best interval", BLUE), ("the run's own limit", RED))
]


def of_disks(at: str = "") -> str:
    """Return what the nodes of the chosen ranks read from their disks, a second."""
    read = f"sum by (instance) (rate({of_nodes('node_disk_read_bytes_total')}[$__rate_interval]{at}))"
    return f"({read} and on (instance) group by (instance) ({of_ranks(c.RANK_INFO)}{at}))"


def rate_spread(metric: c.Metric, worst: str, **matchers: str) -> list[Json]:
    """Return what `spread` does, for the rate of a counter."""
    found = of_ranks(metric, **matchers)
    rate = not_over(f"rate({found}[$__rate_interval])")
    return spread(rate, worst, RANK)


def unspiked(name: str) -> str:
    """Return a series of the run while its loss does not spike."""
    return f"{of_run(name)} unless on (run) ({of_run('run:loss_spike_steps:median')} > 0)"


def top() -> list[Json]:
    """Return the band that answers in five seconds: what is safe, what would be lost, does data flow."""
    good = unspiked("run:checkpoint_step:max")
    lost = f"{of_run('run:unsaved_seconds:max')} * on (run) group_left () {of_run('run:ranks:count')} / 3600"
    return [
        stat("Last good step", "locale", "Step of the newest checkpoint that was saved while the loss was healthy: "
             "what to go back to after a spike or a NaN. Close to the last saved step is good.",
             [query(f"last_over_time(({good})[6h:15s])", instant=True)], "none"),
        stat("Since checkpoint", "s", "Age of the newest checkpoint. Below the interval is good. Older: the run no "
             "longer saves, or does not report it.",
             [query(of_run("run:checkpoint_age_seconds:min"), instant=True)], "none",
             decimals=0),
        stat("Waits for data", UNITS["ratio"], "Share of its time that the median rank waits for data. Near 0 is good. "
             "Above a few percent: read the row Data.", [query(of_run("run:data_wait:median"), instant=True)],
             NO_LOADER, decimals=1),
        firing_of_run(w=9),
        stat("Last saved step", "locale", "Step of the newest checkpoint, good or not.",
             [query(of_run("run:checkpoint_step:max"), instant=True)], "none"),
        stat("GPU-hours at risk", "none", "GPU-hours of work since the last checkpoint, which a failure now would "
             "lose. It falls to 0 at each checkpoint.", [query(lost, instant=True)], "none reported", decimals=1),
        stat("Failed checkpoints", "none", "Checkpoints of any rank that ended with an exception in this attempt. 0 is "
             "good. Above: the rank's log has the reason; check whether the disk is full.",
             [query(f"sum({of_run(c.TRAIN_CHECKPOINT_FAILURES)}) or 0 * sum({of_run(c.RUN_RANKS)})", instant=True)],
             "not collected"),
    ]  # fmt: skip


def data() -> list[Json]:
    """Return whether the loader keeps up, and what it reads from."""
    taken = of_run(c.TRAIN_PHASE_EXCESS, phase="data|copy")
    waiting = f"sum by (run) ({of_run(c.RUN_WAITING_RANKS)})"
    excess = f"sum by (run, phase) (rate({taken}[$__rate_interval])) / on (run) group_left () {waiting}"
    waited = of_ranks(c.TRAIN_RECENT_PHASE, phase="data")
    data_share = f"clamp_max({waited} / ignoring (phase) ({of_ranks(c.TRAIN_RECENT_STEP)} > 0), 1)"
    return [
        lines("Wait for data", UNITS["ratio"], "Share of its time that the median rank waits for data, and the usual "
              "share. Near 0 is good. A step up: the store, the network or the loader became slower; see which rank "
              "and node below.",
              [query(of_run("run:data_wait:median"), "median rank"), query(of_run("run:data_wait:baseline"), "usual"),
               query(of_run("run:limit:max", name='data_stall_ratio'), "its limit")],
              NO_LOADER, overrides=USUAL, min=0),
        lines("Wait for data, by rank", UNITS["ratio"], "As a share of its usual step, for each rank. A narrow band is "
              "good. One rank far above: its node's loader or disk, or longer samples; it holds the others up. By "
              "name: the ranks that wait most.",
              spread(data_share, "topk", RANK), NO_LOADER, overrides=BAND, min=0),
        lines("Batches ready", "none", "Batches that loader workers have ready. Above 0 is good. 0 most of the time: "
              "more workers, a faster store or cheaper preparation. By name: the fewest.",
              spread(of_ranks(c.TRAIN_DATA_QUEUE), "bottomk", RANK),
              NO_QUEUE, overrides=BAND, min=0, soft_max=4),
        lines("Slow fetches", UNITS["ratio"], "Share of time that single steps waited for data beyond what is usual "
              "for their rank. 0 is good. Above while the median wait is low: now and then one fetch takes long.",
              [query(excess, "{{phase}}")], NO_RANK, overrides=coloured(PHASES), min=0, soft_max=0.1),
        lines("Training samples per second", "none", "Samples that the whole run trained on. Steady is good. Falling "
              "while the wait for data grows: data is the cause; otherwise see Run.",
              [query(f"sum({of_run(c.RUN_WORK, unit='samples')})", "samples")],
              "not collected: needs samples_per_step", min=0),
        lines("Read from disks", "Bps", "What a node reads from its own disks. Steady is good. Near the disk's limit "
              "while ranks wait for data: cache more, or spread the data. By name: the most.",
              [*spread(of_disks()), query(f"{of_disks()} and topk(3, {of_disks(' @ end()')})", "{{instance}}")],
              "not collected: no node_exporter with its diskstats is scraped", overrides=BAND, min=0),
        lines("Read from the network", "Bps", "What a node receives over Ethernet, file stores included. All alike is "
              "good. By name: the least.",
              spread(host_rate(of_chosen_ranks(), "node_network_receive_bytes_total", device=ETHERNET), "bottomk",
                     "{{instance}}"), NO_HOST,
              overrides=BAND, min=0),
        lines("I/O pressure", UNITS["ratio"], "Share of time in which all tasks of a node waited for input or "
              "output. Low is good; checkpoints raise it. By name: the highest.",
              spread(of_hosts("node:pressure_io_stalled:ratio1m"), "topk", "{{instance}}"), NO_PRESSURE, overrides=BAND,
              min=0),
        lines("Time lost", UNITS["ratio"], "Share of the run's time that data, checkpoints and evaluation cost. What "
              "the schedule plans is fine; the rest can be saved.",
              [query(f"{of_run('run:lost_seconds:rate2m', cause='data|checkpoint|eval')} / on (run) group_left () "
                     f"{of_run('run:ranks:count')}", "{{cause}}")], "not collected", overrides=coloured(PHASES), min=0,
              stack=True),
        lines("Disks used", UNITS["ratio"], "Share of each file system in use, on the run's nodes. Flat is good. Near "
              "1 the next checkpoint fails: free space on the named mount.",
              spread(disks_used(of_chosen_ranks()), "topk", "{{instance}} {{mountpoint}}"), NO_HOST,
              overrides=BAND, min=0, max=1),
    ]  # fmt: skip


def checkpoints() -> list[Json]:
    """Return whether checkpoints come in time and whole, and at what price."""
    return [
        lines("Checkpoint age", "s", "Age of the newest checkpoint: a sawtooth. Teeth as high as the interval are "
              "good. The best interval weighs what saving costs against how often this run fails.",
              [query(of_run("run:checkpoint_age_seconds:min"), "age"),
               query(of_run("run:checkpoint_interval_seconds:mean1d"), "interval"),
               query(of_run("run:checkpoint_interval_seconds:optimal"), "best interval"),
               query(of_run("run:limit:max", name='checkpoint_age_seconds'), "its limit")], UNSAVED,
              overrides=USUAL, min=0),
        lines("Checkpoint duration", "s", "How long the last checkpoint took the slowest rank, how long is usual, and "
              "how long after its step the newest good one was durable. Steady is good. Rising: the store is busy or "
              "nearly full.",
              [query(of_run("run:checkpoint_duration_seconds:max"), "last"),
               query(f"max({of_run(c.RUN_CHECKPOINT_LAG)})", "until durable"),
               query(of_run("run:checkpoint_duration_seconds:median1d"), "usual")], UNTIMED, overrides=USUAL, min=0),
        lines("Checkpoint duration, by rank", "s", "The same for each rank. A narrow band is good. One far above: its "
              "node's path to the store. By name: the longest.",
              spread(of_ranks(c.TRAIN_CHECKPOINT_DURATION), "topk", RANK), UNTIMED, overrides=BAND, min=0),
        lines("Saving now", "s", "How long the ranks that save have been at it. Nothing between checkpoints, and no "
              "more than the usual duration, is good. Climbing: it hangs; see who climbed first.",
              spread(of_ranks(c.RANK_PHASE, phase="checkpoint"), "topk", RANK), "no rank saves in this time range",
              overrides=BAND, min=0),
        lines("Steps", "locale", "The step of the run, of its newest checkpoint and of the newest good one. Three "
              "lines close together are good. If good stops, the loss is not healthy: go back to its last step.",
              [query(of_run("run:train_step:max"), "run"), query(of_run("run:checkpoint_step:max"), "saved"),
               query(unspiked("run:checkpoint_step:max"), "good")], NO_RANK, min=0),
        lines("Failed checkpoints, by rank", "none", "Checkpoints that ended with an exception in this attempt. 0 is "
              "good. One rank: its disk or its node. All: the store. By name: the most.",
              spread(of_ranks(c.TRAIN_CHECKPOINT_FAILURES), "topk", RANK), "no save has failed", overrides=BAND, min=0,
              decimals=0, soft_max=4),
    ]  # fmt: skip


def detail() -> list[Json]:
    """Return what exporters show only with --rank.series=all."""
    size, took = f"sum({of_ranks(c.TRAIN_CHECKPOINT_BYTES)})", f"max({of_ranks(c.TRAIN_CHECKPOINT_DURATION)})"
    return [
        lines("Batches per second", "none", "Batches that the loader delivered to a rank. All alike is good. One "
              "below: its shard or its loader is slower. By name: the fewest.",
              rate_spread(c.TRAIN_BATCHES, "bottomk"), DETAIL, overrides=BAND, min=0),
        lines("Loader worker restarts", "none", "Times a rank's loader workers were restarted, over all "
              "ranks. Flat is good; a step each epoch is what a loader without persistent workers does.",
              [query(f"sum({of_ranks(c.TRAIN_DATA_WORKER_RESTARTS)})", "restarts")], NO_WORKERS, min=0, decimals=0,
              soft_max=4),
        lines("Checkpoint size", "bytes", "Bytes of the last checkpoint, all ranks together. Flat is good. Half of "
              "what it was: ranks did not save their part.", [query(size, "size")], NO_SIZE, min=0),
        lines("Write rate", "Bps", "Bytes of the last checkpoint divided by the time of its slowest rank. Steady is "
              "good; compare with what the store can do.", [query(f"{size} / {took}", "rate")], NO_SIZE, min=0),
    ]  # fmt: skip


def saved_table() -> Json:
    """Return what each rank saved and loaded last, the slowest first."""
    took = f"max by (rank) ({of_ranks(c.TRAIN_CHECKPOINT_DURATION)})"
    nought = f"max by (rank) ({of_ranks(c.RANK_UP)}) * 0"
    failed = f"max by (rank) ({of_ranks(c.TRAIN_CHECKPOINT_FAILURES)})"
    chosen = (
        f"topk({ROWS}, {nought} + on (rank) (1e6 * {failed} or on (rank) {nought}) + on (rank) ({took} or {nought}))"
    )
    asked = (
        f"{chosen} * on (rank) group_right () group by (rank, instance) ({own(of_ranks(c.RANK_INFO))})",
        state_of_ranks(),
        f"max by (rank) ({of_ranks(c.TRAIN_CHECKPOINT_STEP)})",
        f"time() - max by (rank) ({of_ranks(c.TRAIN_CHECKPOINT_TIMESTAMP)})",
        took,
        failed,
        f"max by (rank) ({of_ranks(c.TRAIN_RESUME_STEP)})",
        f"max by (rank) ({of_ranks(c.TRAIN_CHECKPOINT_LOAD_DURATION)})",
    )
    columns = {"rank": "Rank", "instance": "Node", "state": "State", "Value #C": "Saved step", "Value #D": "Ago"}
    columns |= {"Value #E": "Save time", "Value #F": "Failed", "Value #G": "Resumed from", "Value #H": "Load time"}
    return table(
        "Ranks and their checkpoints",
        f"The {ROWS} ranks whose checkpoints failed, or took longest. All alike, at the same step, is good. A rank "
        "at an older step did not save its part: the checkpoint is not whole. A click on a rank opens it on Run.",
        one_by_one(asked, "rank", chosen),
        "No rank of this run has been seen.",
        columns,
        join="rank",
        overrides=[
            override("Rank", links=[link("Open this rank", "run", run=SAME, rank=field("Rank"))], custom__width=70),
            override("Node", links=[link("Open this node", "node", run=SAME, instance=field("Node"))]),
            words("State", STATE_COLOURS),
            override("Saved step", unit="locale"),
            override("Resumed from", unit="locale"),
            override("Ago", unit="s", decimals=0),
            override("Save time", unit="s", decimals=1),
            override("Load time", unit="s", decimals=1),
            override("Failed", decimals=0),
        ],
        w=24,
        h=10,
    )


def dashboard() -> Json:
    """Return the whole dashboard."""
    return shell.dashboard(
        "storage",
        "Data and checkpoints of one run: does training wait for data, and how much would a failure now lose.",
        [
            *top(),
            row("Data"),
            *data(),
            row("Checkpoints"),
            *checkpoints(),
            saved_table(),
            row("Detail: with --rank.series=all", *detail()),
        ],
    )
