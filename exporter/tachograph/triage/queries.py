"""Every query that triage sends, by name: instant ones, of one moment, none of which depends on the answer to another.

They read what the rules record and the alerts; a node's own series only where the rules show a rank by them, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tachograph.findings.kinds import NODES_UNREACHABLE, RULES_FAILING, STORAGE_SLOW
from tachograph.servers.prometheus_api import quoted

FIGURES = (
    "run:ranks:count", "run:ranks_in_sight:count", "run:ranks_missing:count", "run:nodes:count", "run:restarts:max",
    "run:train_step:max", "run:step_interval_seconds:p50", "run:progress_age_seconds:min", "run:overdue_seconds:min",
    "run:hung_seconds:min", "run:stalled_seconds:min", "run:start_stalled_seconds:min", "run:step_mfu:ratio",
    "run:step_mfu:baseline",
    "run:tokens:rate1m", "run:loss:median", "run:loss_nonfinite_ranks:count", "run:checkpoint_age_seconds:min",
    "run:checkpoint_step:max", "run:checkpoint_duration_seconds:max", "run:checkpoint_interval_seconds:mean1d",
    "run:data_wait:median", "run:data_wait:baseline", "run:collective_wait_per_step_seconds:median",
    "run:goodput:ratio1h", "run:learning_rate:max", "run:amp_skipped_steps:ratio5m",
)  # fmt: skip
"""Recorded series of which a run has one."""

OF_GPUS = (
    "node:gpu_lost:info", "node:gpu_hung:info", "node:gpu_xid_fatal_timestamp_seconds:max",
    "node:gpu_ecc_uncorrected:max", "node:gpu_thermal_slowdown:ratio", "node:gpu_power_braked:ratio",
    "node:gpu_clock_of_peers:ratio", "node:gpu_nvlink_links_down:count", "node:gpu_pcie_speed:ratio",
)  # fmt: skip
"""Series that are there only while something is wrong with a GPU."""

NODES = "group by (instance) (last_over_time(node:run:info{$run}[15m]))"
FIRING = f"""(
  ALERTS{{alertstate="firing",$run,severity=~"critical|warning|info"}}
  or ALERTS{{alertstate="firing",run="",instance!="",severity=~"critical|warning|info"}} and on (instance) $nodes
  or ALERTS{{alertname="{STORAGE_SLOW.alert}",alertstate="firing"}} and on () run:shared_stall_seconds:max{{$run}}
  or ALERTS{{alertname=~"{NODES_UNREACHABLE.alert}|{RULES_FAILING.alert}",alertstate="firing"}}
)"""
"""Alerts of the run and of its nodes, and those of a whole cluster that concern it."""

TEMPLATES: Mapping[str, str] = {
    "figures": f'{{__name__=~"{"|".join(FIGURES)}",$run}}',
    "alerts": f"ALERTS_FOR_STATE and ignoring (alertstate) {FIRING}",
    "pending": 'ALERTS{alertstate="pending",severity="critical",$run}',
    "nodes": NODES,
    "states": "sum by (state) (max by (run, instance, state) (tachograph_run_ranks{$run}))",
    "world_size": "max by (run) (last_over_time(tachograph_run_world_size{$run}[6h]))",
    "ended": "max by (outcome) (last_over_time(run:ended_timestamp_seconds:max{$run}[6h]))",
    "alive": "max by (run) (last_over_time(run:alive_timestamp_seconds:max{$run}[6h]))",
    "first_ends": "topk(8, last_over_time(rank:first_end:timestamp{$run}[1h]))",
    "other_ends": "topk(8, last_over_time(node:first_end_timestamp_seconds:min{$run}[15m]))",
    "starts_failed": "max by (run) (tachograph_run_fruitless_attempts{$run})",
    "kernel": "topk(3, tachograph_node_kernel_message_age_seconds and on (instance) $nodes)",
    "phase_ranks": "run:phase_ranks:count{$run}",
    "suspects": "topk(8, rank:hang_suspect:behind{$run})",
    "stalled": "topk(8, max by (rank, instance, phase, pid, where) "
    "(tachograph_run_hang_suspect_seconds{$run} and on (rank, instance) rank:hang_suspect:behind{$run})) "
    "or topk(3, max by (rank, instance, phase, pid, where) (tachograph_run_hang_suspect_seconds{$run}))",
    "waits_for": "max by (run, of) (last_over_time(tachograph_run_role_info[15m])) "
    "and on (run) run:hung_seconds:min "
    "and on (of) (last_over_time(tachograph_run_role_info{$run}[15m]) unless on (run) run:hung_seconds:min)",
    "frozen": "topk(8, tachograph_run_frozen_seconds{$run})",
    "not_finite": "topk(8, rank:loss_nonfinite_first:step{$run})",
    "differing": "topk(8, rank:invariant_culprit:info{$run})",
    "speed_loss": "max by (run, unit) (run:speed_loss:ratio{$run})",
    "lost": 'topk(3, sum by (run, cause) (sum_over_time(run:lost_seconds:rate2m{$run,cause!~"collective|data"}[30m])) '
    "/ on (run) group_left () (sum_over_time(run:productive_seconds:rate2m{$run}[30m]) "
    "+ on (run) sum by (run) (sum_over_time(run:lost_seconds:rate2m{$run}[30m]))) > 0.1)",
    "phases": "run:phase_seconds:median{$run}",
    "phases_before": "quantile_over_time(0.3, run:phase_seconds:median{$run}[30m])",
    "slow_cause": "run:slowdown_cause:info{$run}",
    "slow_nodes": "node:slowdown_culprit:info{$run}",
    "turns": "max by (phase) (run:turns_excess:ratio{$run})",
    "turns_grown": "max by (phase) (run:turns_excess:ratio{$run} or run:turns_growth_seconds:sum{$run})",
    "late": "topk(8, rank:late_ratio:mean{$run})",
    "late_phase": "topk by (rank, instance) (1, max by (run, rank, instance, phase) "
    "(tachograph_train_recent_phase_seconds{$run} and on (rank, instance) (rank:straggler:level{$run} > 0)) "
    "- on (run, phase) group_left () run:phase_seconds:median{$run} > 0)",
    "bandwidth": "min by (run) "
    "(run:collective_bus_bandwidth_bytes:max2m{$run} / run:collective_bus_bandwidth_bytes:baseline)",
    "shared_stall": "count(run:shared_stall_seconds:max)",
    "queue": "quantile(0.5, tachograph_train_data_queue_size{$run})",
    "loss_before": "run:loss:mean1m{$run} offset 30m",
    "loss_lowest": "min_over_time(run:loss:mean1m{$run}[1h])",
    "loss_lowest_before": "min_over_time(run:loss:mean1m{$run}[2h] offset 1h)",
    "rate_before": "max_over_time(run:learning_rate:max{$run}[1d])",
    "grad_norm": "quantile by (run) (0.5, tachograph_run_grad_norm{$run} / tachograph_run_grad_norm_level)",
    "of_gpus": f'{{__name__=~"{"|".join(OF_GPUS)}"}} and on (instance) $nodes',
    "gpu_ranks": "node:gpu_rank:info{$run} and on (instance, uuid) "
    f'{{__name__=~"{"|".join(OF_GPUS)}"}}',
    "nic_error_rate": "node:nic_errors:rate2m and on (instance) $nodes",
    "of_nodes_unseen": "max by (instance) (node:exporter_unseen_seconds:max or node:unseen_seconds:max) "
    "and on (instance) $nodes",
    "nic_errors": "topk(16, topk by (instance) (1, "
    "max by (instance, device, error) (node:nic_errors:increase1h) and on (instance) $nodes))",
    "nic_down": "topk(8, max by (instance, device) (node:nic_down_seconds:max) and on (instance) $nodes)",
    "answering": "count(node:exporter_up:max == 1 and on (instance) $nodes)",
    "memory_peak": "max by (run) (tachograph_run_memory_peak_ratio{$run})",
    "memory_full": "min by (run, rank, instance, memory) (node:memory_exhaustion_seconds:predicted{$run})",
    "disk_free": "min by (run) (tachograph_run_checkpoint_free_ratio{$run})",
    "usual_save": "run:checkpoint_duration_seconds:median1d{$run}",
}  # fmt: skip


def filled(run: str, template: str) -> str:
    """Return a query of a run."""
    return template.replace("$nodes", NODES).replace("$run", f"run={quoted(run)}")


def queries(run: str) -> dict[str, str]:
    """Return every query of a run, by name."""
    return {name: filled(run, template) for name, template in TEMPLATES.items()}
