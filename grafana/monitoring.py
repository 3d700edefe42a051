"""The dashboard "Monitoring health": can we see, and would somebody hear of it.

A panel is one entry in one of the functions below. Exporters, then the Prometheus that asks them, then the way an alert
takes. An exporter that is down is still listed: by `up`, which Prometheus writes itself.
"""

from __future__ import annotations

import shell
from condition import ON_HOSTS, firing_table
from culprits import ROWS
from panels import (
    BAND,
    GREEN,
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
    variable,
)
from series import of_cluster, of_nodes
from shell import MANY, field, link
from tachograph.catalog import index as c

GROUPS = 5  # rule groups that are drawn, of some forty
ABOUT = (
    "NodeDown|NodesUnreachable|TelemetryLost|ExporterDown|NvmlCollectorStale|ExporterOverloaded|RunBlind|RanksMissing"
    "|NodeClockSkewed|RuleEvaluationFailing|UserOverShare"
)
"""Alerts about what cannot be seen, or cannot be relied on."""

NODE = variable("instance", "Node", f"label_values({of_cluster('up', job='tachograph')}, instance)", **MANY)

WHO = "{{instance}}"
UP = of_nodes("up", job="tachograph")
NODE_JOB = "node|node-exporter"
"""As in prometheus/parameters.yml."""
NO_EXPORTER = "no exporter answers"
NO_SELF = "not collected: Prometheus does not scrape itself (job prometheus)"
NO_ALERTMANAGER = "not collected: Prometheus does not scrape Alertmanager (job alertmanager)"
ANSWER = {"0": {"text": "down", "color": RED}, "1": {"text": "up", "color": GREEN}}


def since_start(name: str) -> str:
    """Return how often something happened in the time range, all of it together."""
    return f"sum(increase({of_cluster(name)}[$__range]))"


def per_minute(metric: c.Metric | str, by: str, **matchers: str) -> str:
    """Return how often something happens a minute on the chosen nodes, by a label."""
    return f"60 * sum by ({by}) (rate({of_nodes(metric, **matchers)}[$__rate_interval]))"


def top() -> list[Json]:
    """Return the band that answers in five seconds: do exporters answer, do rules run, do alerts get out."""
    watchdog = f"group({of_cluster('ALERTS', alertname='TachographWatchdog', alertstate='firing')})"
    works = [{"type": "value", "options": {"1": {"text": "works", "color": GREEN}}}]
    host = of_nodes("up", job=NODE_JOB)
    kinds = ("prometheus_notifications_errors", "prometheus_notifications_dropped", "alertmanager_notifications_failed")
    lost = " or ".join(f'label_replace({since_start(f"{name}_total")}, "kind", "{name}", "", "")' for name in kinds)
    firing = of_nodes("ALERTS", alertstate="firing", alertname=ABOUT)
    return [
        stat("Alerting", "none", "Whether the Watchdog fires. It always should, and shows that Prometheus evaluates "
             "its rules. Its receiver checks whether it also reaches somebody.", [query(watchdog, instant=True)],
             "the Watchdog does not fire: no rules are evaluated", mappings=works),
        stat("Exporters answering", "none", "Nodes whose Tachograph exporter answers, out of those that Prometheus "
             "scrapes. Equal is good. Fewer: the table below names them.",
             [query(f"sum({UP})", "answering", instant=True), query(f"count({UP})", "known", instant=True)],
             "no exporter is scraped", show="value_and_name"),
        stat("node_exporters answering", "none", "The same for node_exporter, which distinguishes a dead node from a "
             "dead exporter.", [query(f"sum({host})", "answering", instant=True),
                           query(f"count({host})", "known", instant=True)], "no node_exporter is scraped",
             show="value_and_name"),
        firing_table("Monitoring alerts firing", firing, "Alerts about what cannot be seen: nodes, ranks, clocks and "
                     "rules.", "No alert about monitoring fires; Fleet has the others.", ON_HOSTS, w=9),
        stat("Missed evaluations", "none", "How often in the range a rule group was skipped because its previous "
             "evaluation took too long. 0 is good. Above: the row Prometheus names the group; Prometheus needs more "
             "CPU.",
             [query(since_start("prometheus_rule_group_iterations_missed_total"), instant=True)], NO_SELF, decimals=0),
        stat("Failed evaluations", "none", "Rule evaluations in the range that failed. 0 is good. Above: Prometheus' "
             "rules page shows the error.",
             [query(since_start("prometheus_rule_evaluation_failures_total"), instant=True)], NO_SELF, decimals=0),
        stat("Undelivered alerts", "none", "Alerts in the range that did not reach Alertmanager, and messages it "
             "could not deliver. 0 is good. Above: the row Alerts shows where.",
             [query(f"sum({lost})", instant=True)], NO_SELF, decimals=0),
    ]  # fmt: skip


def node_table() -> Json:
    """Return the nodes that cannot be seen, then those that take longest to scrape."""
    took = f"max by (instance) ({of_nodes('scrape_duration_seconds', job='tachograph')})"
    chosen = f"topk({ROWS}, 1e6 * (1 - max by (instance) ({UP})) + on (instance) {took})"
    seconds = of_nodes("node:exporter_unseen_seconds:max")
    asked = (
        f"max by (instance) ({UP}) and {chosen}",
        f"max by (instance) ({of_nodes('up', job=NODE_JOB)})",
        f"max by (instance) ({seconds})",
        took,
        f"max by (instance) ({of_nodes('scrape_samples_scraped', job='tachograph')})",
        f"max by (instance) ({of_nodes(c.COLLECTOR_AGE)})",
        f"count by (instance) ({of_nodes(c.COLLECTOR_SUCCESS)} == 0)",
    )
    columns = {"instance": "Node", "Value #A": "Exporter", "Value #B": "node_exporter", "Value #C": "Unseen for"}
    columns |= {"Value #D": "Scrape duration", "Value #E": "Samples", "Value #F": "Oldest reading"}
    columns |= {"Value #G": "Failing collectors"}
    answer = [{"type": "value", "options": ANSWER}]
    made = table(
        "Nodes, worst visibility first",
        f"The {ROWS} nodes that do not answer, then those that take longest to scrape. All answering, in far less "
        "than the scrape interval, is good. Only node_exporter answers: restart the exporter. Neither: the node, or "
        "the network to it. Collectors fail on nodes without GPUs, too. A click opens the node.",
        [query(f"{one} and {chosen}" if i else one, table=True) for i, one in enumerate(asked)],
        "no exporter is scraped",
        columns,
        overrides=[
            override("Node", links=[link("Open this node", "node", instance=field("Node"))]),
            override("Exporter", mappings=answer, custom__cellOptions={"type": "color-text"}),
            override("node_exporter", mappings=answer, custom__cellOptions={"type": "color-text"}),
            override("Unseen for", unit="s", decimals=0),
            override("Scrape duration", unit="s", decimals=1),
            override("Samples", unit="locale"),
            override("Oldest reading", unit="s", decimals=1),
        ],
        w=24,
        h=9,
    )
    worst_first = [{"field": "Value #A", "desc": False}, {"field": "Value #D", "desc": True}]
    shaping = [
        {"id": "merge", "options": {}},
        {"id": "sortBy", "options": {"fields": {}, "sort": worst_first[1:]}},
        {"id": "sortBy", "options": {"fields": {}, "sort": worst_first[:1]}},
    ]
    made["transformations"][:0] = shaping
    return made


def exporters() -> list[Json]:
    """Return whether the exporters answer in time, with fresh readings, and drop nothing."""
    heard = of_nodes(c.RUN_FROZEN)
    age = of_nodes(c.COLLECTOR_AGE)
    cpu = of_nodes("process_cpu_seconds_total", job="tachograph")
    busiest = f"topk(3, rate({cpu}[$__rate_interval] @ end()))"
    why = f"count by (collector, reason) ({of_nodes(c.COLLECTOR_UNAVAILABLE)})"
    fails = f"sum by (collector) (1 - {of_nodes(c.COLLECTOR_SUCCESS)})"
    return [
        lines("Scrape duration", "s", "How long Prometheus takes to read an exporter's page, and how often it asks. "
              "Milliseconds are good. Near the interval: the node is overloaded or the network to it is slow. By "
              "name: the slowest.",
              [*spread(of_nodes("scrape_duration_seconds", job="tachograph"), "topk", WHO),
               query(f'min({of_cluster("prometheus_target_interval_length_seconds", quantile="0.5")})', "interval")],
              NO_EXPORTER, overrides=[*BAND, override("interval", color={"mode": "fixed", "fixedColor": RED},
                                                      custom__lineStyle={"fill": "dash", "dash": [8, 8]})], min=0),
        lines("Samples per scrape", "none", "Samples on an exporter's page. Similar nodes should have a similar "
              "number; about a thousand for 8 GPUs and 8 ranks. Beyond sample_limit in prometheus.yml the whole page "
              "is refused. By name: the "
              "most.", spread(of_nodes("scrape_samples_scraped", job="tachograph"), "topk", WHO),
              NO_EXPORTER, overrides=BAND, min=0),
        lines("Age of readings", "s", "Age of the oldest snapshot that a page shows, by collector: the page never "
              "waits for the driver. A few seconds are good. Climbing on gpu: the driver hangs there. By name: the "
              "oldest.",
              [query(f"max by (collector) ({age})", "{{collector}}"),
               query(f"{age} and topk(3, {at_end(age)})", "{{instance}} {{collector}}")], NO_EXPORTER,
              min=0),
        lines("Silent ranks", "s", "How long ranks that are still connected have sent nothing, once over half a "
              "minute. None is good: such a process is stopped, or stuck in the kernel. By name: the longest.",
              spread(heard, "topk", "{{run}} rank {{rank}}"), "no rank is silent",
              overrides=BAND, min=0),
        lines("Failing collectors", "none", "Nodes on which a collector does not succeed, and why; and single GPU "
              "readings that failed or are impossible. 0 is good; gpm fails before Hopper, gpu and xid where there is "
              "no GPU. A step up: look at the reason, or at the exporter's log.",
              [query(fails, "{{collector}}"), query(why, "{{collector}}: {{reason}}"),
               query(f"sum({of_nodes(c.GPU_READINGS_FAILED)})", "GPU readings")],
              NO_EXPORTER, min=0, decimals=0, soft_max=4),
        lines("Frames", "suffix:frames/s", "Frames from ranks that exporters accepted and rejected. One per second per "
              "rank, and nothing rejected, is good. Rejected: see the reason in docs/protocol.md.",
              [query(f"sum(rate({of_nodes(c.FRAMES)}[$__rate_interval]))", "accepted"),
               query(f"sum by (reason) (rate({of_nodes(c.FRAMES_REJECTED)}[$__rate_interval])) > 0",
                     "rejected, {{reason}}")], NO_EXPORTER, min=0),
        lines("Dropped values", "suffix:values/min", "Series that exporters left out of frames, by reason, and values "
              "that ranks dropped themselves. 0 is good. series_limit or label_limit: a loop logs too many names.",
              [query(f"60 * sum(rate({of_nodes(c.SERIES_DROPPED)}[$__rate_interval]))", "all reasons"),
               query(f"{per_minute(c.SERIES_DROPPED, 'reason')} > 0", "{{reason}}"),
               query(f"60 * sum(rate({of_nodes(c.CLIENT_DROPPED)}[$__rate_interval]))", "by ranks")], NO_EXPORTER,
              min=0, soft_max=4),
        lines("GPU collector exits", "suffix:exits/min", "Exits of the process that reads a node's GPUs: crashed, "
              "killed because no driver call returned, or renewed for another driver. 0 is good. Killed again and "
              "again: the driver hangs, see GpuHung.", [query(per_minute(c.WORKER_ENDS, "cause"), "{{cause}}")],
              NO_EXPORTER, min=0, soft_max=1),
        lines("Exporter CPU", UNITS["ratio"], "Share of one core that an exporter takes. 1 % is the budget with 8 GPUs "
              "and 8 ranks, scraped every 5 s. By name: the most.",
              [*spread(f"rate({cpu}[$__rate_interval])"), query(f"rate({cpu}[$__rate_interval]) and {busiest}", WHO)],
              NO_EXPORTER, overrides=BAND, min=0, w=12),
        lines("Exporter memory", UNITS["bytes"], "Resident memory of an exporter, without the process that reads GPUs. "
              "Flat is good; 80 MB is the budget of both. By name: the most.",
              spread(of_nodes("process_resident_memory_bytes", job="tachograph"), "topk", WHO), NO_EXPORTER,
              overrides=BAND, min=0, w=12),
    ]  # fmt: skip


def prometheus() -> list[Json]:
    """Return whether Prometheus keeps up."""
    load, at_end = (
        f"{of_cluster('prometheus_rule_group_last_duration_seconds')}{at}"
        f" / {of_cluster('prometheus_rule_group_interval_seconds')}{at}"
        for at in ("", " @ end()")
    )
    named = f'label_replace({load} and topk({GROUPS}, {at_end}), "group", "$1", "rule_group", ".*;(.*)")'
    missed = f"rate({of_cluster('prometheus_rule_group_iterations_missed_total')}[$__rate_interval])"
    failed = f"rate({of_cluster('prometheus_rule_evaluation_failures_total')}[$__rate_interval])"
    refused = {
        "exceeded_sample_limit": "sample limit",
        "sample_duplicate_timestamp": "duplicate",
        "sample_out_of_order": "out of order",
        "sample_out_of_bounds": "out of bounds",
    }
    return [
        lines("Rule group duration / interval", UNITS["ratio"], "How long a rule group takes, as a share of its "
              f"interval. Below half is good. Near 1 evaluations are missed and alerts come late: give Prometheus "
              f"more CPU. The {GROUPS} slowest.", [query(named, "{{group}}")], NO_SELF, min=0),
        lines("Missed and failed evaluations", "suffix:evals/min", "Evaluations of a rule group that were skipped, "
              "and rules that could not be evaluated. 0 is good.",
              [query(f"60 * sum({missed})", "missed"), query(f"60 * sum({failed})", "failed")], NO_SELF, min=0,
              soft_max=1),
        lines("Samples scraped per second", "none", "Samples that Prometheus takes in. Steady is good; it falls "
              "with nodes that do not answer.",
              [query(f"sum(rate({of_cluster('prometheus_tsdb_head_samples_appended_total')}[$__rate_interval]))",
                     "samples")], NO_SELF, min=0),
        lines("Series", "none", "Series that Prometheus holds in memory. It grows with nodes and ranks, and with each "
              "restart of a run for up to two hours. Growing without end: some label is unbounded.",
              [query(f"sum({of_cluster('prometheus_tsdb_head_series')})", "series")], NO_SELF, min=0),
        lines("Rejected scrapes", "suffix:/min", "Pages and samples that Prometheus rejected, by reason. 0 is good. "
              "Sample limit: a page is larger than prometheus.yml allows, so the node is not visible.",
              [query(f"60 * sum(rate({of_cluster(f'prometheus_target_scrapes_{name}_total')}[$__rate_interval]))", word)
               for name, word in refused.items()], NO_SELF, min=0, soft_max=1),
        lines("Prometheus CPU", UNITS["ratio"], "CPU of Prometheus; 100 % is one core. Steady is good. Near what the "
              "machine has: evaluations come late.",
              [query(f"rate({of_cluster('process_cpu_seconds_total', job='prometheus')}[$__rate_interval])", WHO)],
              NO_SELF, min=0),
        lines("Prometheus memory", UNITS["bytes"], "Resident memory of Prometheus. A sawtooth of two hours is good. "
              "Climbing from tooth to tooth: see Series.",
              [query(of_cluster("process_resident_memory_bytes", job="prometheus"), WHO)], NO_SELF, min=0),
        lines("Configuration", "none", "1 while the last reload of the configuration succeeded. 0: the file is "
              "invalid and the old one is still in use; promtool or amtool check-config says where.",
              [query(f"min({of_cluster('prometheus_config_last_reload_successful')})", "Prometheus"),
               query(f"min({of_cluster('alertmanager_config_last_reload_successful')})", "Alertmanager")], NO_SELF,
              min=0, max=1, decimals=0),
    ]  # fmt: skip


def alerts() -> list[Json]:
    """Return the way an alert takes: from Prometheus to Alertmanager, from there to a person."""
    sent, errors, dropped = (
        f"60 * sum(rate({of_cluster(f'prometheus_notifications_{name}_total')}[$__rate_interval]))"
        for name in ("sent", "errors", "dropped")
    )
    told, failed = (
        f"60 * sum by (integration) (rate({sent_ever}[$__rate_interval])) and on (integration) "
        f"(sum by (integration) (increase({sent_ever}[$__range] @ end())) > 0)"
        for sent_ever in (of_cluster(f"alertmanager_notifications_{name}total") for name in ("", "failed_"))
    )
    none = f'label_replace(0 * sum({of_cluster("alertmanager_alerts")}), "integration", "none", "", "")'
    return [
        lines("Prometheus to Alertmanager", "suffix:alerts/min", "Alerts that Prometheus sent, that no Alertmanager "
              "accepted, and that it dropped. Sent above 0 (the Watchdog is always among them) and the others at 0 is "
              "good. Errors: is Alertmanager up, is targets/alertmanager.yml right?",
              [query(sent, "sent"), query(errors, "errors"), query(dropped, "dropped")], NO_SELF,
              overrides=coloured({"errors": RED, "dropped": RED}), min=0, soft_max=1),
        lines("Alertmanagers and queue", "none", "Alertmanagers that Prometheus knows, and alerts that wait to be "
              "sent. As many as you run, and none waiting, is good.",
              [query(f"sum({of_cluster('prometheus_notifications_alertmanagers_discovered')})", "Alertmanagers"),
               query(f"sum({of_cluster('prometheus_notifications_queue_length')})", "queued alerts")], NO_SELF,
              min=0, decimals=0, soft_max=4),
        lines("Alertmanager notifications", "suffix:messages/min", "Messages by integration, and those that failed. "
              "One for the Watchdog each minute, and nothing failed, is good. Failed: the receiver is down or its "
              "secret is wrong; Alertmanager's log says which.",
              [query(f"({told}) or on () {none}", "{{integration}}"),
               query(failed, "failed, {{integration}}")], NO_ALERTMANAGER, min=0, soft_max=1),
        lines("Alerts and silences", "none", "Alerts that Alertmanager holds, active or suppressed, and active "
              "silences. Suppressed while something is down is good: the cause pages, symptoms do not. A silence "
              "nobody remembers is not.", [query(f"sum by (state) ({of_cluster('alertmanager_alerts')})", "{{state}}"),
                          query(f"sum({of_cluster('alertmanager_silences', state='active')})", "silences")],
              NO_ALERTMANAGER, min=0, decimals=0, soft_max=4),
    ]  # fmt: skip


def dashboard() -> Json:
    """Return the whole dashboard."""
    firing = of_nodes("ALERTS", alertstate="firing", alertname=ABOUT)
    return shell.dashboard(
        "monitoring",
        "Monitoring itself: do exporters answer, does Prometheus keep up, would an alert reach somebody?",
        [*top(), node_table(), row("Exporters"), *exporters(), row("Prometheus"), *prometheus(), row("Alerts"),
         *alerts()],
        variables=(NODE,),
        annotations=[annotation("Alerts", RED, firing, "{{alertname}}", "{{instance}}", on=True)],
        since="now-1h",
        refresh="30s",
    )  # fmt: skip
