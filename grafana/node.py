"""The dashboard "Node and GPU": is anything physically breaking, and on which node, GPU or link.

A panel is one entry in one of the functions below. A band and three names stand for all GPUs, so 8 and 16,384 of them
make the same panel. What a part does not measure has no line, and the panel says so; it is never drawn as 0.
"""

from __future__ import annotations

import shell
from absences import NO_HOST, NO_PRESSURE
from condition import ON_HOSTS, firing_table
from culprits import ROWS
from depth import mig, tuning
from hosts import GPU, NODE, RUN, WHERE, alerts, of_gpus, of_hosts, of_their_runs, rated
from panels import (
    BAND,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    UNITS,
    Json,
    annotation,
    at_end,
    coloured,
    lines,
    override,
    query,
    row,
    spread,
    stat,
    table,
    timeline,
)
from series import ETHERNET, disks_used, headroom, host_rate, of_nodes, slows_down_at
from shell import FIND, SAME, field, link
from tachograph.catalog import index as c

BUSY = 16  # rows of the timeline
ONE = "by (instance, gpu, uuid)"
WHO = "{{instance}} GPU {{gpu}}"
UNREAD = "not collected: no GPU, no driver, not supported, or --gpu.series=few; see GPUs readable"

CONDITIONS = (
    ("ok", GREEN, c.GPU_UP.name),
    ("slower than its peers", ORANGE, "node:gpu_clock_of_peers:ratio"),
    ("slow PCIe link", ORANGE, "node:gpu_pcie_speed:ratio"),
    ("too hot", ORANGE, "node:gpu_thermal_slowdown:ratio"),
    ("power brake", ORANGE, "node:gpu_power_braked:ratio"),
    ("NVLink errors", ORANGE, "GpuNvlinkErrors"),
    ("NVLink down", RED, "node:gpu_nvlink_links_down:count"),
    ("needs a reset", ORANGE, "GpuRowRemapPending"),
    ("needs replacement", RED, "GpuRowRemapFailed"),
    ("memory error", RED, "node:gpu_ecc_uncorrected:max"),
    ("fatal Xid", RED, "node:gpu_xid_fatal_timestamp_seconds:max"),
    ("hung", RED, "node:gpu_hung:info"),
    ("lost", RED, "node:gpu_lost:info"),
)
"""The conditions of a GPU, by a recorded series or an alert, best first: the last that holds stands for the GPU."""


def top() -> list[Json]:
    """Return the band that answers in five seconds: are nodes and GPUs there, does anything fire on them."""
    up = f"({of_nodes('up', job='tachograph')} and {WHERE})"
    asked = f"count by (action) ({of_gpus(c.GPU_RECOVERY_ACTION, action='!none')} > 0)"
    return [
        stat("Nodes answering", "none", "Nodes whose exporter answers Prometheus, out of those it is configured to "
             "scrape. Equal is good. Fewer: Monitoring health names the node and shows whether it is up.",
             [query(f"sum(max by (instance) ({up}))", "answering", instant=True),
              query(f"count(group by (instance) ({up}))", "known", instant=True)], "no exporter is scraped",
             show="value_and_name"),
        stat("GPUs readable", "none", "GPUs the last collection could read, of those the nodes know. Equal is good. "
             "Fewer: a GPU has fallen off or its driver hangs; the table below names it.",
             [query(f"sum({of_gpus(c.GPU_UP)})", "readable", instant=True),
              query(f"count({of_gpus(c.GPU_UP)})", "known", instant=True)], "no GPU is known", show="value_and_name"),
        firing_table("Firing on these nodes", f"({alerts()} or {of_their_runs()})", "What fires on these nodes and for "
                     "the runs there, and which GPU it names.", "No alert fires on these nodes or for the runs there.",
                     ON_HOSTS, w=14),
        stat("Power now", UNITS["watts"], "Total board power of the chosen GPUs. Near the sum of their limits at full "
             "load; far below, they wait.", [query(f"sum({of_gpus('node:gpu_power:watts')})", instant=True)],
             "not collected"),
        stat("Repairs requested", "none", "GPUs for which the driver asks for a reset, a reboot or a drain. None is "
             "good. Drain the node at the next checkpoint, then do what is asked.",
             [query(asked, "{{action}}", instant=True)], "none", show="value_and_name"),
    ]  # fmt: skip


def gpu_table() -> Json:
    """Return the table that names the part: the most conspicuous GPUs of all that are chosen."""
    found = [
        of_nodes("ALERTS", alertname=name, alertstate="firing", gpu="$gpu")
        if name.startswith("Gpu")
        else of_nodes(name, gpu="$gpu")
        for _, _, name in CONDITIONS
    ]
    codes = [f"0 * max {ONE} ({one}) + {code}" for code, one in enumerate(found)]
    condition = f"(({' or '.join(reversed(codes))}) and {WHERE})"
    idle = f"(max {ONE} ({of_gpus('node:gpu_sm_active:ratio')}) or 0 * max {ONE} ({of_gpus(c.GPU_UP)}))"
    chosen = f"topk({ROWS}, {condition} - {idle} / 2)"  # of equals, the idlest
    asked = (
        f"{condition} and {chosen}",
        f"max {ONE} ({of_gpus('node:gpu_sm_active:ratio')})",
        f"max {ONE} ({of_gpus('node:gpu_power:watts')})",
        f"min {ONE} ({headroom(of_gpus)})",
        f"max {ONE} ({of_gpus(c.GPU_CLOCK, domain='sm')})",
        f"max {ONE} ({of_gpus('node:gpu_ecc_corrected:increase1h')})",
    )
    rank = (
        f"{chosen} * 0 + on (instance, uuid) group_right (gpu) max by (instance, uuid, run, rank) (node:gpu_rank:info)"
    )
    queries = [query(f"{one} and {chosen}" if i else one, table=True) for i, one in enumerate(asked)]
    names = {str(i): {"text": word, "color": colour} for i, (word, colour, _) in enumerate(CONDITIONS)}
    columns = {"instance": "Node", "gpu": "GPU", "Value #A": "Condition", "run": "Run", "rank": "Rank"}
    columns |= {"Value #B": "SM activity", "Value #C": "Power", "Value #D": "Thermal headroom", "Value #E": "SM clock"}
    columns |= {"Value #F": "ECC corrected", "uuid": "UUID"}
    here = link("Show only this GPU", "node", run=SAME, instance=field("Node"), gpu=field("GPU"))
    run = link("Open this rank's run", "run", run=field("Run"), instance=field("Node"), rank=field("Rank"))
    made = table(
        "GPUs, worst first",
        f"The {ROWS} GPUs most worth a look: lost, hung, with a fatal Xid, a memory error, a link down, hot or "
        "slow, then the idlest; corrected errors are those of an hour. All ok and alike is good. A click on a node "
        "shows only that GPU, one on a rank its run.",
        [*queries, query(rank, table=True)],
        "No GPU has been seen.",
        columns,
        overrides=[
            override("Node", links=[here], custom__width=110),
            override("GPU", custom__width=50),
            override("UUID", custom__width=347),
            override(
                "Condition",
                mappings=[{"type": "value", "options": names}],
                custom__cellOptions={"type": "color-text"},
                custom__width=160,
            ),
            override("Run", custom__width=128),
            override("Rank", links=[run], custom__width=60),
            override("SM activity", unit=UNITS["ratio"], decimals=0, custom__width=95),
            override("Power", unit=UNITS["watts"], decimals=0, custom__width=70),
            override("Thermal headroom", unit=UNITS["celsius"], decimals=0, custom__width=136),
            override("SM clock", unit=UNITS["hertz"], custom__width=80),
            override("ECC corrected", unit="locale", custom__width=110),
        ],
        w=24,
        h=10,
    )
    worst_first = {"fields": {}, "sort": [{"field": "Value #A", "desc": True}]}
    made["transformations"][:0] = [{"id": "merge", "options": {}}, {"id": "sortBy", "options": worst_first}]
    return made


def dashed(name: str) -> Json:
    """Return the override for a line that the part itself draws: what it can hold, or may reach."""
    style = {"fill": "dash", "dash": [8, 8]}
    return override(name, color={"mode": "fixed", "fixedColor": RED}, custom__lineStyle=style)


def activity() -> list[Json]:
    """Return whether the GPUs work."""
    uncounted = "not collected: needs Hopper or newer, or DCGM's profiling fields"
    return [
        lines("GPU utilization", UNITS["ratio"], "Share of time in which any kernel ran. High on all is good, but no "
              "proof of work: a GPU that waits in a collective reads 100 %. By name: the idlest.",
              spread(of_gpus(c.GPU_UTILIZATION), "bottomk", WHO), UNREAD, overrides=BAND, min=0, max=1),
        lines("SM activity", UNITS["ratio"], "Share of SM cycles with work on the SM. High on all is good. One low: "
              "see what its rank does, then its clock. By name: the idlest.",
              spread(of_gpus("node:gpu_sm_active:ratio"), "bottomk", WHO), uncounted, overrides=BAND, min=0, max=1),
        lines("Tensor activity", UNITS["ratio"], "Share of cycles in which the tensor cores work. All alike is good. "
              "One low: its rank computes less, or waits. By name: the idlest.",
              spread(of_gpus("node:gpu_tensor_active:ratio"), "bottomk", WHO), uncounted, overrides=BAND, min=0,
              max=1),
        lines("GPU memory used", UNITS["bytes"], "Device memory in use, and what is installed. Flat is good. A slow "
              "climb is a leak and ends in an out-of-memory error. By name: the fullest.",
              [*spread(of_gpus(c.GPU_MEMORY_USED), "topk", WHO),
               query(f"max({of_gpus(c.GPU_MEMORY_TOTAL)})", "installed")], UNREAD,
              overrides=[*BAND, dashed("installed")], min=0),
    ]  # fmt: skip


HELD = {
    3: ("power brake", RED, "node:gpu_power_braked:ratio"),
    2: ("heat", ORANGE, "node:gpu_thermal_slowdown:ratio"),
    1: ("power cap", BLUE, "node:gpu_power_capped:ratio"),
}
"""Why the driver throttles a GPU, worst first."""
_CAPPED = {"gpu": "$gpu", "reason": "sw_power_cap"}
TOLD = f"({rated(c.GPU_CLOCK_EVENT_SECONDS, **_CAPPED)} or {of_hosts(c.GPU_CLOCK_EVENT, **_CAPPED)})"
"""One series for each GPU that reports why it is throttled."""


def throttling() -> Json:
    """Return when which GPU was throttled and why; rows are the GPUs that were throttled most in the time range."""
    codes = [f"{of_nodes(name, gpu='$gpu')} * 0 + {code}" for code, (_, _, name) in HELD.items()]
    held = f"(({' or '.join(codes)}) and {WHERE})"
    most = f"topk({BUSY}, sum_over_time({held}[$__range:1m] @ end()))"
    names = {str(code): {"text": word, "color": colour} for code, (word, colour, _) in HELD.items()}
    mappings = [{"type": "value", "options": names}]
    return timeline(
        "Throttling by reason",
        "none",
        f"The {BUSY} GPUs that the driver throttled longest. None, or a power cap on all at full load, is "
        f"good. Heat: look at fans, air flow and the neighbours in the rack. Power brake: the supply or the rack's "
        "power is short, call the data centre.",
        [query(f"{held} and {most}", WHO)],
        "no GPU was throttled; or none reports it, see Throttled GPUs",
        mappings=mappings,
        shown=held,
        w=18,
        h=9,
    )


def power() -> list[Json]:
    """Return whether heat or power holds a GPU back."""
    return [
        lines("Power per GPU", UNITS["watts"], "Mean board power. All alike is good. One far below its peers computes "
              "less; all falling while utilization stays high means they wait. By name: the lowest.",
              [*spread(of_gpus("node:gpu_power:watts"), "bottomk", WHO),
               query(f"max({of_gpus(c.GPU_POWER_LIMIT)})", "limit")], UNREAD, overrides=[*BAND, dashed("limit")],
              min=0),
        lines("Temperature", UNITS["celsius"], "Die temperature. Well below the part's own slowdown point is good. One "
              "that is hot alone: the fan, paste or air flow of that slot. By name: the hottest.",
              [*spread(of_gpus(c.GPU_TEMPERATURE, sensor="gpu"), "topk", WHO),
               query(f"min({slows_down_at(of_gpus)})", "slows down at")], UNREAD,
              overrides=[*BAND, dashed("slows down at")]),
        lines("Thermal headroom", UNITS["celsius"], "Degrees Celsius until the hottest sensor, memory included, makes "
              "the GPU throttle. Ten and more is good. Near 0 it throttles soon: cool the node before it does. By "
              "name: the closest.", spread(headroom(of_gpus), "bottomk", WHO), UNREAD,
              overrides=BAND),
        lines("SM clock", UNITS["hertz"], "Clock of the compute units. All alike is good. One below its peers slows "
              "the whole run: the timeline below says why. By name: the lowest.",
              spread(of_gpus(c.GPU_CLOCK, domain="sm"), "bottomk", WHO), UNREAD, overrides=BAND, min=0),
        throttling(),
        lines("Throttled GPUs", "none", "GPUs that the driver throttles, by reason. 0 is good; a power cap on "
              "all alike is normal at full load. The timeline next to it names them.",
              [query(f"count({of_gpus(name)}) or 0 * count({TOLD})", word) for word, _, name in HELD.values()], UNREAD,
              overrides=coloured({word: colour for word, colour, _ in HELD.values()}), min=0, decimals=0, soft_max=4,
              h=9),
    ]  # fmt: skip


def faults() -> list[Json]:
    """Return what broke or wears out: Xids, memory errors, remapped rows and retired pages."""
    key = "by (instance, gpu, uuid, xid)"
    last = f"bottomk({ROWS}, time() - max {key} ({of_gpus(c.GPU_XID_TIMESTAMP)}))"
    told = f"max by (instance, uuid, xid, meaning, action) ({of_nodes(c.GPU_XID_INFO)})"
    columns = {"Value": "Ago", "instance": "Node", "gpu": "GPU", "xid": "Xid", "meaning": "Meaning", "action": "Action"}
    here = link("Show only this GPU", "node", run=SAME, instance=field("Node"), gpu=field("GPU"))
    gone = f"sum by (error) ({of_gpus(c.GPU_REMAPPED_ROWS)})"
    return [
        table("Xids, newest first", "What the driver reported about each GPU, what it means, and what to do. None is "
              "good. Application: look at the program; reset or reboot: drain the node first; return: send the board "
              "back. Look a number up in runbooks/GpuXidFatal.md.",
              [query(f"{last} * on (instance, uuid, xid) group_left (meaning, action) {told} or on (instance, uuid, "
                     f"xid) {last}", table=True)], "No Xid has been seen.", columns,
              overrides=[override("Ago", unit="s", decimals=0, custom__width=90), override("Node", links=[here]),
                         override("GPU", custom__width=55), override("Xid", custom__width=55)],
              sort=[{"displayName": "Ago", "desc": False}], w=12),
        lines("ECC errors", "none", "Memory errors of the chosen GPUs since their drivers were loaded. Flat is good. "
              "Uncorrected and rising: drain the node, reset the GPU; if they come back, return the part.",
              [query(f"sum by (error) ({of_gpus(c.GPU_ECC_ERRORS, scope='volatile')})", "{{error}}")], UNREAD,
              min=0, decimals=0, soft_max=4),
        lines("Remapped rows and retired pages", "none", "Rows replaced by spare ones, pages retired on parts before "
              "Ampere, and GPUs that wait for a reset or have no spare rows left. Flat is good. Waiting: reset it at "
              "the next restart. Worn out: return the board.",
              [query(gone, "rows, {{error}}"),
               query(f"sum by (error) ({of_gpus(c.GPU_RETIRED_PAGES)})", "pages, {{error}}"),
               query(f"sum({of_gpus(c.GPU_ROW_REMAP_PENDING)})", "GPUs awaiting a reset"),
               query(f"sum({of_gpus(c.GPU_ROW_REMAP_FAILED)})", "GPUs out of spare rows")],
              UNREAD, min=0, decimals=0, soft_max=4),
    ]  # fmt: skip


def links() -> list[Json]:
    """Return whether the paths between GPUs and out of the node are intact: NVLink, InfiniBand and Ethernet."""
    bare = "not collected: no NVLink, the driver does not count it, or --gpu.series=few"
    nvlink = rated(c.GPU_NVLINK_BYTES, gpu="$gpu", direction="transmit")
    down = of_gpus("node:gpu_nvlink_links_down:count")
    no_rdma = "not collected: no InfiniBand or RoCE, or no node_exporter"
    errors = of_hosts("node:nic_errors:increase1h")
    return [
        lines("NVLink traffic", "Bps", "Payload that a GPU sends over all its NVLinks. All alike is good. One far "
              "below: its links or its rank. Near 0 on all while they train: the job does not use NVLink.",
              spread(nvlink), bare, overrides=BAND, min=0),
        lines("NVLinks down", "none", "Links that were up before, or are up on the GPU's peers, and are not now. 0 is "
              "good. Above: drain the node; look at the bridge, the baseboard or the switch tray. By name: most down.",
              [query(f"sum({down}) or 0 * count({of_gpus(c.GPU_NVLINK_LINKS)})", "all"),
               query(f"{down} and topk(3, {at_end(down)})", WHO)], bare, min=0, decimals=0,
              soft_max=4),
        lines("NVLink errors", "suffix:errors/min", "Errors on all NVLinks, by kind. 0, or a few checksums that a "
              "replay fixed, is good. Recovery, or effective on NVLink 5: drain the node, look at the bridge "
              "or the switch tray.", [query(f"60 * sum by (error) ({rated(c.GPU_NVLINK_ERRORS, gpu='$gpu')})",
              "{{error}}")], bare, min=0, soft_max=4),
        lines("InfiniBand and RoCE traffic", "Bps", "What a node sends over RDMA. All alike is good. One below its "
              "peers: its port runs slow or its ranks arrive late. By name: the lowest.",
              spread(host_rate(WHERE, "node_infiniband_port_data_transmitted_bytes_total"), "bottomk", "{{instance}}"),
              no_rdma, overrides=BAND, min=0),
        lines("Network ports: errors and faults", "none", "Ports that are down, ports slower than they were, and "
              "errors in the last hour. 0 is good. A port down or slow: cable, transceiver, switch port. Errors "
              "that rise: the same, before it fails. By name: most errors.",
              [query(f"count({of_hosts('node:nic_down_seconds:max')})", "ports down"),
               query(f"count({of_hosts('node:nic_speed:ratio')})", "ports slower than usual"),
               query(f"{errors} and topk(3, {at_end(errors)})", "{{instance}} {{device}}")],
              "no port is down, slow or has errors; or no node_exporter", min=0, decimals=0, soft_max=4),
        lines("Congestion", "suffix:packets/s", "Congestion notifications that nodes sent, and packets whose "
              "acknowledgement never came. Near 0 is good. Both up on many nodes: the fabric is overloaded or "
              "misrouted; on one: its port.",
              [query(f"sum({rated('node_infiniband_np_cnp_packets_sent_total')})", "congestion notifications"),
               query(f"sum({rated('node_infiniband_local_ack_timeout_errors_total')})", "acknowledgements lost")],
              no_rdma, min=0, soft_max=4),
    ]  # fmt: skip


def pcie() -> list[Json]:
    """Return whether the paths from the GPUs to their host are intact, and how busy they are."""
    return [
        lines("PCIe links", "none", "GPUs whose PCIe link has fewer lanes, or under load a lower generation, than slot "
              "and part allow, and packets per minute that had to be resent. 0 is good. Slow, or replays that stay: "
              "reseat the board or its riser at the next stop.",
              [query(f"count({of_gpus('node:gpu_pcie_speed:ratio')}) or 0 * count({of_gpus(c.GPU_PCIE_WIDTH)})",
                     "GPUs on a slow link"),
               query(f"60 * sum({rated(c.GPU_PCIE_REPLAYS, gpu='$gpu')})", "replays per minute")], UNREAD, min=0,
              decimals=0, soft_max=4),
        lines("PCIe traffic", "Bps", "Sampled rate over PCIe, as seen from the GPU. Low during training is good: only "
              "data and checkpoints pass here. Always high: optimizer states or batches are moved too often. By name: "
              "the busiest.", spread(f"sum by (instance, gpu, uuid) ({of_gpus(c.GPU_PCIE_RATE)})", "topk", WHO),
              "not collected: the exporter runs without --gpu.series=all", overrides=BAND, min=0),
    ]  # fmt: skip


def host() -> list[Json]:
    """Return whether the node itself is short of CPU, memory or disk."""
    who = "{{instance}}"
    return [
        lines("Available host memory", UNITS["ratio"], "Share of the node's memory that programs can still get. Flat "
              "is good. A slow fall ends with the kernel killing a rank: Run shows whose memory grows. By name: the "
              "least.", spread(f"{of_hosts('node_memory_MemAvailable_bytes')} / on (instance) "
                     f"{of_nodes('node_memory_MemTotal_bytes')}", "bottomk", who), NO_HOST, overrides=BAND,
              min=0, max=1),
        lines("CPU pressure", UNITS["ratio"], "Share of time in which some task was ready but got no CPU. Low is "
              "good. High on one node: too many loader workers, or another job on the machine. By name: the highest.",
              spread(rated("node_pressure_cpu_waiting_seconds_total"), "topk", who), NO_PRESSURE, overrides=BAND,
              min=0),
        lines("Memory pressure", UNITS["ratio"], "Share of time in which all tasks waited for memory at once. 0 is "
              "good. Above: the node swaps or reclaims, and its ranks are blocked. By name: the highest.",
              spread(rated("node_pressure_memory_stalled_seconds_total"), "topk", who), NO_PRESSURE, overrides=BAND,
              min=0),
        lines("I/O pressure", UNITS["ratio"], "Share of time in which all tasks waited for input or output at "
              "once. Low is good; checkpoints raise it. By name: the highest.",
              spread(of_hosts("node:pressure_io_stalled:ratio1m"), "topk", who), NO_PRESSURE, overrides=BAND,
              min=0),
        lines("Disks used", UNITS["ratio"], "Share of each file system in use. Flat is good. Near 1 a checkpoint "
              "fails: free space on the named mount.",
              spread(disks_used(WHERE), "topk", "{{instance}} {{mountpoint}}"), NO_HOST,
              overrides=BAND, min=0, max=1),
        lines("Network traffic of the host", "Bps", "What a node receives over Ethernet: data, checkpoints, "
              "monitoring. All alike is good. By name: the most.",
              spread(host_rate(WHERE, "node_network_receive_bytes_total", device=ETHERNET), "topk", who),
              NO_HOST, overrides=BAND, min=0),
    ]  # fmt: skip


def dashboard() -> Json:
    """Return the whole dashboard."""
    xid = f"group by (instance, gpu, xid) (abs(time() - {of_nodes(c.GPU_XID_TIMESTAMP)}) < 90)"
    kernel = f"group by (instance, kind, text) ({of_nodes(c.NODE_KERNEL_MESSAGE)} < 90)"
    return shell.dashboard(
        "node",
        "Nodes, GPUs, links and disks: is anything physically breaking, and where. A run narrows them to its nodes.",
        [*top(), gpu_table(), row("Activity"), *activity(), row("Power and heat"), *power(), row("Faults"),
                *faults(), row("Links"), *links(), row("Host"), *host(), row("PCIe", *pcie()),
                row("Tuning a model", *tuning()), row("MIG", mig())],
        variables=(FIND, RUN, NODE, GPU),
        annotations=[
            annotation("Alerts", RED, alerts(), "{{alertname}}", "{{instance}} GPU {{gpu}}", on=True),
            annotation("Xids", PURPLE, xid, "Xid {{xid}}", "{{instance}} GPU {{gpu}}", on=True),
            annotation("Kernel", ORANGE, kernel, "{{kind}}", "{{instance}}: {{text}}", on=True),
        ],
    )  # fmt: skip
