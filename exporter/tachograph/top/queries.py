"""The queries of `top RUN`: recorded figures, and the worst ranks and GPUs; never all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tachograph.catalog import index as c
from tachograph.catalog.rank import GENERATION
from tachograph.findings.kinds import RUN_HUNG
from tachograph.servers.prometheus_api import quoted

ALERTS_SHOWN = 20
"""Of each kind: those that page, and those that do not."""

FIGURES = (
    "run:train_step:max", "run:step_interval_seconds:mean2m", "run:tokens:rate1m", "run:step_mfu:ratio",
    "run:step_mfu:baseline", "run:loss:median", "run:loss_nonfinite_ranks:count", "run:hung_seconds:min",
    "run:overdue_seconds:min",
    "run:progress_timestamp_seconds:max", "run:checkpoint_timestamp_seconds:max", "run:checkpoint_step:max",
    "run:restarts:max",
    "run:goodput:ratio1h", "run:ranks:count", "run:data_wait:median", "run:collective_wait_per_step_seconds:median",
)  # fmt: skip

LIMIT = "run:limit:max"

HISTORIES = ("run:loss:median", "run:step_mfu:ratio")

STALLED = (c.RUN_FROZEN.name, c.RUN_HANG_SUSPECT.name)
"""What says at which line of which process a rank stands still."""

OF_RANKS = (
    c.RANK_INFO.name, c.RANK_COORDINATES.name, c.RANK_STATE.name, c.RANK_PHASE.name, c.RANK_PROGRESS.name,
    c.TRAIN_STEP.name, c.TRAIN_LOSS.name, c.TRAIN_RECENT_WAIT.name, "rank:late_ratio:mean", *STALLED,
)  # fmt: skip

USUAL_WAIT = "usual_wait"
"""The name under which the wait comes that lag is measured from: the median rank's, of two the longer one."""

LATE_PHASE = "late_phase"
"""The name under which the phase comes in which a rank is busy longest beyond the median rank."""

OF_GPUS = (
    "node:gpu_sm_active:ratio", "node:gpu_tensor_active:ratio", "node:gpu_power:watts",
    "node:gpu_thermal_slowdown:ratio", "node:gpu_power_capped:ratio", "node:gpu_power_braked:ratio",
    c.GPU_INFO.name, c.GPU_UTILIZATION.name, c.GPU_POWER_LIMIT.name, c.GPU_MEMORY_USED.name, c.GPU_MEMORY_TOTAL.name,
    c.GPU_TEMPERATURE.name, c.GPU_UNAVAILABLE.name, c.GPU_RECOVERY_ACTION.name, c.GPU_XID_INFO.name,
)  # fmt: skip

Marked = Mapping[str, tuple[str, str]]
"""Mark: topk or bottomk, and what it is taken of."""


def figures(run: str) -> str:
    """Select the recorded figures of a run, its usual wait, and its limit of the wait for data."""
    waits = f"{c.TRAIN_RECENT_WAIT.name}{{run={quoted(run)}}}"
    usual = f"max by (run) ({waits}) and count by (run) ({waits}) == 2 or quantile by (run) (0.5, {waits})"
    named = f'label_replace(label_replace({usual}, "of", "waits", "", ""), "__name__", "{USUAL_WAIT}", "", "")'
    limit = f'{LIMIT}{{run={quoted(run)},name="data_stall_ratio"}}'
    return f"{_select(FIGURES, f'run={quoted(run)}')} or {named} or {limit}"


def parts(run: str) -> str:
    """Select the seconds of a step in each phase, of a loop that generates."""
    here = f"run:phase_seconds:median{{run={quoted(run)}}}"
    return f'{here} and on (run) run:phase_seconds:median{{run={quoted(run)},phase=~"{"|".join(GENERATION)}"}}'


def histories(run: str) -> str:
    """Select what sparklines are drawn of."""
    return _select(HISTORIES, f"run={quoted(run)}")


def states(run: str) -> str:
    """Count a run's ranks by state: five series; what a node still shows of a rank that lives elsewhere is left out."""
    ended = f'label_replace({_gone(run)}, "state", "failed", "", "")'
    return (
        f'count by (state) ({c.RANK_STATE.name}{{run={quoted(run)},state!~"dead|failed"}} == 1) or '
        f'count by (state) (label_replace({ended}, "state", "dead", "reason", "died"))'
    )


def _gone(run: str) -> str:
    """Select when ranks ended that did not finish and have not been restarted."""
    here = f"run={quoted(run)}"
    return f'{c.RANK_ENDED.name}{{{here},reason!="finished"}} unless on (run, rank) {c.RANK_UP.name}{{{here}}} == 1'


def alerts(run: str) -> str:
    """Select for how long each alert of a run and of its nodes fires; warnings never crowd out what pages."""
    firing = (
        f'(ALERTS{{alertstate="firing",run={quoted(run)}}} or ALERTS{{alertstate="firing",run="",'
        f'severity=~"critical|warning|info"}} and on (instance) node:run:info{{run={quoted(run)}}})'
    )
    seconds = (f'time() - ALERTS_FOR_STATE{{severity{which}"critical"}}' for which in ("=", "!="))
    return " or ".join(f"topk({ALERTS_SHOWN}, {each} and ignoring (alertstate) {firing})" for each in seconds)


def misuses(run: str) -> str:
    """Count by kind what the run's script got wrong with its recorder."""
    return f"sum by (kind) ({c.TRAIN_MISUSE.name}{{run={quoted(run)}}})"


def worst_ranks(run: str, most: int, wanted: str) -> str:
    """Select the worst ranks of a run with the label `mark`, at most `most` of each kind; and those asked for."""
    here = f"{{run={quoted(run)}}}"
    kinds: dict[str, tuple[str, str]] = {
        "died first": ("bottomk", f'rank:first_end:timestamp{{run={quoted(run)},kind="died"}}'),
        "failed first": ("bottomk", f'rank:first_end:timestamp{{run={quoted(run)},kind!="died"}}'),
        "culprit": ("topk", f'ALERTS{{alertname="{RUN_HUNG.alert}",alertstate="firing",rank!="",run={quoted(run)}}}'),
        "NaN first": ("topk", f"rank:loss_nonfinite_first:step{here}"),
        "frozen": ("topk", f'{c.RANK_STATE.name}{{run={quoted(run)},state="frozen"}} == 1'),
        "ended": ("bottomk", _gone(run)),
        "straggler": ("topk", f'rank:straggler:level{{run={quoted(run)},rank!=""}} > 0'),
        "behind": ("topk", f"rank:hang_suspect:behind{here}"),
        "off step": ("topk", f"rank:steps_apart:count{here}"),
        "lag": ("topk", f'rank:lag_seconds:mean{{run={quoted(run)},rank!=""}}'),
    }
    for term in wanted.split():
        where = f'rank="{int(term)}"' if term.isascii() and term.isdigit() else f"instance=~{quoted(_holding(term))}"
        kinds[f"wanted {len(kinds)}"] = ("topk", f"{c.RANK_UP.name}{{run={quoted(run)},{where}}}")
    return _marked(kinds, most)


def any_ranks(run: str, most: int) -> str:
    """Select the ranks that are longest in their phase, where no lag is known."""
    return _marked({"long": ("topk", f"{c.RANK_PHASE.name}{{run={quoted(run)}}}")}, most)


def of_ranks(run: str, ranks: Iterable[int]) -> str:
    """Select all that is shown of some ranks."""
    which = f'run={quoted(run)},rank=~"{"|".join(map(str, ranks))}"'
    longer = f"{c.TRAIN_RECENT_PHASE.name}{{{which}}} - on (run, phase) group_left () run:phase_seconds:median > 0"
    return (
        f'{_select(OF_RANKS, which)} or label_replace(topk by (rank) (1, {longer}), "__name__", "{LATE_PHASE}", "", "")'
    )


def worst_gpus(run: str, most: int) -> str:
    """Select the worst GPUs under a run's ranks, with the label `mark`."""
    held = f"* on (instance, uuid) group_left (run, rank) node:gpu_rank:info{{run={quoted(run)}}}"
    kinds = {
        "lost": ("topk", f"node:gpu_lost:info {held}"),
        "hung": ("topk", f"node:gpu_hung:info {held}"),
        "power brake": ("topk", f"node:gpu_power_braked:ratio {held}"),
        "thermal": ("topk", f"node:gpu_thermal_slowdown:ratio {held}"),
        "idle": ("bottomk", f"node:gpu_sm_active:ratio {held}"),
    }
    return _marked(kinds, most)


def of_gpus(uuids: Iterable[str]) -> str:
    """Select all that is shown of some GPUs."""
    return _select(OF_GPUS, f"uuid=~{quoted('|'.join(map(_literal, uuids)))}")


def _select(names: Iterable[str], where: str) -> str:
    return f'{{__name__=~"{"|".join(names)}",{where}}}'


def _marked(kinds: Marked, most: int) -> str:
    return " or ".join(
        f'label_replace({pick}({most}, {of}), "mark", "{mark.split()[0] if mark[:6] == "wanted" else mark}", "", "")'
        for mark, (pick, of) in kinds.items()
    )


def _holding(text: str) -> str:
    return f"(?i).*{_literal(text)}.*"


def _literal(text: str) -> str:
    """Return a regular expression of RE2 for a text."""
    return re.sub(r"([!-,./:-@\[-`{-~])", r"\\\1", text)
