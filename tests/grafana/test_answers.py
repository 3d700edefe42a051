"""What panels say where ranks moved, another job has the run's name, a scrape failed, or scrapes are a minute apart."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tachograph.catalog import index as c

Json = dict[str, Any]
RANK_3 = 'run="r",rank="3"'


@dataclass(frozen=True)
class Case:
    """A panel's query, or an annotation's, over series every 5 s; what it answers, by labels."""

    dashboard: str
    title: str
    series: Mapping[str, str]
    answers: Mapping[str, float]
    at: int = 480
    letter: str = "A"
    then: str = ""
    """What is put behind the query: NaN, which stands for no value, compares as nothing."""


MOVED = {  # from node a, where it is shown dead, to b
    f'tachograph_rank_info{{{RANK_3},instance="a",gpu="3",attempt="0",world_size="1"}}': "1x99",
    f'tachograph_rank_info{{{RANK_3},instance="b",gpu="3",attempt="1",world_size="1"}}': "1x99",
    f'tachograph_rank_state{{{RANK_3},instance="a",state="dead"}}': "1x99",
    f'tachograph_rank_state{{{RANK_3},instance="b",state="running"}}': "1x99",
    f'tachograph_rank_up{{{RANK_3},instance="a"}}': "0x99",
    f'tachograph_rank_up{{{RANK_3},instance="b"}}': "1x99",
    f'tachograph_train_step{{{RANK_3},instance="a"}}': "20x99",
    f'tachograph_train_step{{{RANK_3},instance="b"}}': "120x99",
    f'rank:halted:info{{{RANK_3},instance="a",state="dead"}}': "1x99",
}
AT_WORK = {
    f'tachograph_rank_state{{{RANK_3},instance="b",state="running"}}': "1x99",
    f'tachograph_rank_up{{{RANK_3},instance="b"}}': "1x99",
    'run:step_interval_seconds:p50{run="r"}': "1x99",
    'run:progress_age_seconds:min{run="r"}': "1x99",
}
HANG_ALERT = 'ALERTS{run="r",alertname="RunHung",alertstate="firing",severity="critical"}'
WAITS = {  # rules measure from the least wait of some steps, which is no rank's lag now
    'run:collective_wait_per_step_seconds:median{run="r"}': "0.2x99",
    'tachograph_train_recent_wait_seconds{run="r",rank="0",instance="a"}': "0.25x99",
    'tachograph_train_recent_wait_seconds{run="r",rank="1",instance="a"}': "0.5x99",
    'tachograph_run_step_seconds{run="r",instance="a"}': "2x99",
}
CASES = {
    "of two ranks, the other one is the measure of lag": Case(
        "ranks", "Lag per step", WAITS, {'{line="max"}': 0.125, '{line="median"}': 0.0625, '{line="min"}': 0}
    ),
    "a run whose saves all succeed has failed none": Case(
        "storage", "Failed checkpoints",
        {'tachograph_run_ranks{run="r",instance="a",state="running"}': "2x99"},
        {"{}": 0},
    ),
    "the median rank is not late": Case(
        "ranks", "Lag per step",
        WAITS | {'tachograph_train_recent_wait_seconds{run="r",rank="2",instance="a"}': "0.5x99"},
        {'{line="max"}': 0.125, '{line="median"}': 0, '{line="min"}': 0},
    ),
    "a rank that goes on elsewhere is no dead one": Case("run", "Run", MOVED, {"{}": 7}),
    **{
        f"a run is {word}": Case("run", "Run", series, {"{}": code})
        for word, code, series in (
            ("hung", 1, AT_WORK | {'run:hung_seconds:min{run="r"}': "40x99", HANG_ALERT: "1x99"}),
            ("stalled after ten steps and 10 s", 5, AT_WORK | {'run:progress_age_seconds:min{run="r"}': "18x99"}),
            ("stalled while its hang is no page yet", 5, AT_WORK
             | {'run:progress_age_seconds:min{run="r"}': "18x99", 'run:overdue_seconds:min{run="r"}': "18x99"}),
            ("running 12 s after the step before a save", 7, AT_WORK | {
                'run:progress_age_seconds:min{run="r"}': "12x99",
                f'tachograph_rank_phase_seconds{{{RANK_3},instance="b",phase="checkpoint"}}': "10x94 stale"}),
            ("stalled half a minute after a save", 5, AT_WORK | {
                'run:progress_age_seconds:min{run="r"}': "48x99",
                f'tachograph_rank_phase_seconds{{{RANK_3},instance="b",phase="checkpoint"}}': "10x88 stale"}),
            ("running after 9 s", 7, AT_WORK | {'run:progress_age_seconds:min{run="r"}': "9x99"}),
            ("running while a rank saves", 7, AT_WORK | {
                'run:progress_age_seconds:min{run="r"}': "40x99",
                f'tachograph_rank_phase_seconds{{{RANK_3},instance="b",phase="checkpoint"}}': "40x99"}),
            ("one that steps again, while the page still fires", 6, AT_WORK | {HANG_ALERT: "1x99"}),
        )
    },
    "ranks of a run that makes no step are stalled": Case(
        "run", "Ranks, worst first", AT_WORK | {'run:progress_age_seconds:min{run="r"}': "18x99"},
        {'{rank="3",state="stalled"}': 1}, letter="B",
    ),
    "no step, no line": Case(
        "run", "Step time", {
            'tachograph_train_recent_step_seconds{run="r",rank="0",instance="a"}': "1x99",
            'run:overdue_seconds:min{run="r"}': "155x99"}, {},
    ),
    "it is one of one": Case("run", "Ranks reporting", MOVED, {'{up="1",world_size="1"}': 1}),
    "it stands in one row": Case(
        "run", "Ranks, worst first", MOVED, {'{rank="3",instance="b",gpu="3"}': 0}
    ),
    "in one state": Case(
        "run", "Ranks, worst first", MOVED, {'{rank="3",state="running"}': 1}, letter="B"
    ),
    "it is no step behind itself": Case("ranks", "Step spread across ranks", MOVED, {"{}": 0}),
    "collectives a scrape apart are no hang": Case(
        "ranks", "Collectives behind",
        {'tachograph_run_ranks{run="r",instance="a",state="running"}': "2x99",
         'tachograph_train_collective_enqueued{run="r",rank="0",group="dp",instance="a"}': "0 _x11 1200 _x11 2400 _x71",
         'tachograph_train_collective_enqueued{run="r",rank="1",group="dp",instance="b"}': "_x6 600 _x11 1800 _x80"},
        {"{}": 0}, at=150,
    ),
    "a checkpoint outlives the process that saved it": Case(
        "storage", "Since checkpoint",
        {'tachograph_train_checkpoint_timestamp_seconds{run="r",rank="0",instance="a"}': "100x60 stale",
         'run:checkpoint_age_seconds:min{run="r"}': "0+5x99"},
        {'run:checkpoint_age_seconds:min{run="r"}': 480},
    ),
    "the GPU that ended a run stays in sight": Case(
        "node", "GPUs readable",
        {'node:run:info{run="r",instance="a"}': "1x60 stale", 'tachograph_gpu_up{instance="a",gpu="0"}': "1x60 0x39"},
        {"{}": 0},
    ),
    "the first Xid of its kind is marked": Case(
        "node", "Xids",
        {'node:run:info{run="r",instance="a"}': "1x99",
         'tachograph_gpu_xid_timestamp_seconds{instance="a",gpu="0",xid="79"}': "_x90 450x9"},
        {'{instance="a",gpu="0",xid="79"}': 1},
    ),
    "how far a GPU is from slowing down is its own word, otherwise by its threshold, otherwise unknown": Case(
        "node", "Thermal headroom",
        {'node:run:info{run="r",instance="a"}': "1x99",
         'tachograph_gpu_temperature_margin_celsius{instance="a",job="t",gpu="0"}': "5x99",
         'tachograph_gpu_temperature_celsius{instance="a",job="t",gpu="0",sensor="gpu"}': "74x99",
         'tachograph_gpu_temperature_threshold_celsius{instance="a",job="t",gpu="0",threshold="slowdown"}': "92x99",
         'tachograph_gpu_temperature_celsius{instance="a",job="t",gpu="1",sensor="gpu"}': "87x99",
         'tachograph_gpu_temperature_threshold_celsius{instance="a",job="t",gpu="1",threshold="slowdown"}': "92.5x99",
         'tachograph_gpu_temperature_threshold_celsius{instance="a",job="t",gpu="1",threshold="shutdown"}': "97x99",
         'tachograph_gpu_temperature_celsius{instance="a",job="t",gpu="2",sensor="gpu"}': "82x99"},
        {'{line="max"}': 5.5, '{line="median"}': 5.25, '{line="min"}': 5},
    ),
    "a message of the kernel is marked when it comes": Case(
        "node", "Kernel",
        {'node:run:info{run="r",instance="a"}': "1x99",
         'tachograph_node_kernel_message_age_seconds{instance="a",kind="nfs",text="nfs: server b"}': "_x90 2+5x9",
         'tachograph_node_kernel_message_age_seconds{instance="a",kind="disk",text="older"}': "_x90 60+5x9"},
        {'{instance="a",kind="nfs",text="nfs: server b"}': 1},
    ),
    "a failed scrape is no restart": Case(
        "run", "Restarts",
        {'tachograph_rank_info{run="r",rank="0",attempt="0",instance="a"}': "1x83 stale 1x40",
         'tachograph_run_restarts{run="r",attempt="0"}': "1x83 stale 1x40"},
        {},
    ),
    "an attempt that is new is one": Case(
        "run", "Restarts",
        {
            'tachograph_run_restarts{run="r",attempt="0"}': "1x99",
            'tachograph_run_restarts{run="r",attempt="1"}': "_x90 1x9",
        },
        {'{attempt="1"}': 1},
    ),
    "GPUs of a run that is over are not held": Case(
        "fleet", "GPUs allocated",
        {'run:ranks:count{run="a"}': "4x99", 'run:ranks:count{run="b"}': "4x99",
         'node:ranks_alive:count{run="a",instance="n"}': "4x60 stale",
         'node:ranks_alive:count{run="b",instance="n"}': "4x99"},
        {"{}": 4},
    ),
    **{
        f"half of what was taken is {title}, column {letter}": Case(
            "fleet", title,
            {'run:ranks:count{run="a"}': "8x720", 'node:ranks_alive:count{run="a",instance="n"}': "8x720",
             'run:productive_seconds:rate2m{run="a"}': "4x720", 'run:owner:info{run="a",owner="1000"}': "1x720",
             'run:tokens:rate1m{run="a"}': "9000x720", 'run:gpu_power:watts{run="a"}': "6000x720"},
            answer, at=3600, letter=letter,
        )
        for title, letter, answer in (
            ("What runs took", "C", {'{run="a"}': 0.5}), ("What runs took", "E", {'{run="a"}': 1.5}),
            ("What users took", "C", {'{owner="1000"}': 0.5}),
        )
    },
    "a run that hangs loses all of its GPUs at once": Case(
        "fleet", "Runs, worst first",
        {'run:ranks:count{run="a"}': "8x99", 'run:lost_seconds:rate2m{run="a",cause="hang"}': "1x99",
         'run:hung_seconds:min{run="a"}': "40x99", 'run:ranks:count{run="b"}': "8x99",
         'run:lost_seconds:rate2m{run="b",cause="data"}': "2x99"},
        {'{run="a"}': 1, '{run="b"}': 0.25}, letter="E",
    ),
    "power falls at once in a save, and tokens per joule do not rise": Case(
        "fleet", "Tokens per joule",
        {'run:tokens:rate1m{run="a"}': "4500x99", 'run:gpu_power:watts{run="a"}': "6000x90 0x9"},
        {"{}": 1.5}, at=485,
    ),
    "what pages without a run is none": Case(
        "fleet", "Runs with a page",
        {'ALERTS{alertname="StorageSlow",alertstate="firing",severity="critical"}': "1x99",
         'run:ranks:count{run="a"}': "4x99"},
        {"{}": 0},
    ),
    "slow storage fires for whom it stalls": Case(
        "storage", "Firing now",
        {'ALERTS{alertname="StorageSlow",alertstate="firing",severity="critical"}': "1x99",
         'ALERTS_FOR_STATE{alertname="StorageSlow",severity="critical"}': "80x99",
         'run:shared_stall_seconds:max{run="r"}': "20x99"},
        {'{alertname="StorageSlow",severity="critical"}': 400},
    ),
    "an alert begins where it fires, not where it once was pending": Case(
        "incident", "Alerts of this window, in order",
        {'ALERTS{run="r",alertname="A",alertstate="pending",severity="warning"}': "_x12 1x5 stale",
         'ALERTS{run="r",alertname="A",alertstate="firing",severity="warning"}': "_x80 1x19",
         'ALERTS_FOR_STATE{run="r",alertname="A",severity="warning"}': "_x12 60x5 stale _x61 390x20"},
        {'{run="r",alertname="A",severity="warning"}': 390_000},
    ),
    "rows of ranks are in the order of their numbers": Case(
        "ranks", "Lag per step by rank, full red at 20%",
        {f'tachograph_train_recent_wait_seconds{{run="r",rank="{rank}",instance="a"}}': f"{wait}x99"
         for rank, wait in ((2, 0.5), (7, 1), (10, 1))} | {'tachograph_run_step_seconds{run="r",instance="a"}': "2x99"},
        {'{b="00002",rank="2"}': 0.25, '{b="00007",rank="7"}': 0, '{b="00010",rank="10"}': 0},
    ),
    "rows of nodes are in the order of their numbers": Case(
        "ranks", "Collective time per step by node, full red at 2 × median",
        {f'tachograph_run_collective_seconds{{run="r",instance="{node}"}}': f"{took}x99"
         for node, took in (("gpu-2.site:1", 1), ("gpu-10a", 2), ("10.0.0.7:1", 2), ("head", 2))},
        {'{a="gpu-",b="00002",instance="gpu-2.site:1"}': 0.5, '{a="gpu-",b="00010",instance="gpu-10a"}': 1,
         '{b="00010",instance="10.0.0.7:1"}': 1, '{instance="head"}': 1},
    ),
    **{
        f"a hang fires on {dashboard} where a rank of the run is": Case(
            dashboard, title,
            {'ALERTS{run="r",alertname="RunHung",alertstate="firing",severity="critical"}': "1x99",
             'ALERTS_FOR_STATE{run="r",alertname="RunHung",severity="critical"}': "80x99",
             'node:run:info{run="r",instance="a"}': "1x99", 'up{job="tachograph",instance="a"}': "1x99"},
            {'{run="r",alertname="RunHung",severity="critical"}': 400},
        )
        for dashboard, title in (("run", "Firing now"), ("storage", "Firing now"), ("node", "Firing on these nodes"))
    },
    "what changed is what began after the run, or left": Case(
        "run", "What changed",
        {'node:run:info{run="r",instance="a"}': "1x99", 'node:run:info{run="r",instance="b"}': "1x40 stale",
         'node:run:info{run="r",instance="c"}': "_x50 1x49", 'tachograph_run_world_size{run="r",instance="a"}': "2x99",
         'tachograph_run_restarts{run="r",instance="a",attempt="0"}': "1x48 stale",
         'tachograph_run_restarts{run="r",instance="a",attempt="1"}': "_x50 1x49",
         'tachograph_run_batch_changed_seconds{run="r",instance="a"}': "_x60 0+5x39"},
        {'{what="node came",is="c"}': 300_000, '{what="attempt",is="1"}': 300_000, '{what="batch"}': 300_000,
         '{what="node left",is="b"}': 180_000},
    ),
    "steps of 1.02 s that become a quarter slower are drawn as that": Case(
        "run", "Step time",
        {'tachograph_train_recent_step_seconds{run="r",rank="0",instance="a"}': "1.02x50 1.265x50"},
        {'{line="median"}': 1.265},
    ),
    "the end of a run is no change in it": Case(
        "run", "What changed",
        {'node:run:info{run="r",instance="a"}': "1x60 stale", 'node:run:info{run="r",instance="b"}': "1x60 stale",
         'node:run:info{run="r",instance="c"}': "_x50 1x10 stale"}, {'{what="node came",is="c"}': 300_000},
    ),
    "a batch that changed before the range is no change in it": Case(
        "run", "What changed",
        {'node:run:info{run="r",instance="a"}': "1x999",
         'tachograph_run_batch_changed_seconds{run="r",instance="a"}': "_x60 0+5x939"}, {}, at=4800,
    ),
    **{
        f"{title} has the same hour yesterday beside it": Case(
            "run", title, {f'{series}{{run="r"}}': "1x100 2x17290"},
            {f'{series}{{run="r",line="{now}"}}': 2, f'{series}{{run="r",line="a day before"}}': 1}, at=86_880,
        )
        for title, series, now in (
            ("Step time", "run:step_seconds:mean1m", "mean"), ("MFU", "run:step_mfu:ratio", "completed steps"),
            ("Tokens per second", "run:tokens:rate1m", "tokens"),
        )
    },
    **{
        f"a rank that {verdict} stands on top of Incident with {phase}": Case(
            "incident", "Ranks and nodes that rules name",
            {f'tachograph_rank_info{{{RANK_3},instance="b",gpu="3"}}': "1x99",
             'tachograph_rank_info{run="r",rank="4",instance="b",gpu="4"}': "1x99",
             'tachograph_rank_phase_seconds{run="r",rank="4",instance="b",phase="backward"}': "60x99",
             f'{series}{{{RANK_3},instance="b"{label}}}': "1x99",
             'rank:straggler:level{run="r",instance="a"}': "2x99"}  # a node, which has no rank
            | {f'tachograph_rank_phase_seconds{{{RANK_3},instance="b",phase="{each}"}}': "60x99" for each in phases},
            {f'{{rank="3",instance="b",verdict="{verdict}"}}': code},
        )
        for verdict, phase, series, label, phases, code in (
            ("caused the hang", "its phase", "rank:hang_suspect:behind", "", ["data"], c.PHASES.index("data")),
            ("died first", "none", "rank:first_end:timestamp", ',kind="died"', [], -1),
        )
    },
    "a slow node stands on top of Incident, and a rank's node only with the rank": Case(
        "incident", "Ranks and nodes that rules name",
        {'node:slowdown_culprit:info{run="r",instance="a",cause="communication"}': "1x99",
         f'rank:hang_suspect:behind{{{RANK_3},instance="b"}}': "1x99"},
        {'{instance="a",verdict="slow: communication"}': -2}, letter="B",
    ),
    "the node of the rank that died stands above the others": Case(
        "run", "Nodes, worst first",
        {'tachograph_run_ranks{run="r",instance="a",state="running"}': "8x99",
         'tachograph_run_ranks{run="r",instance="b",state="running"}': "7x99",
         f'rank:first_end:timestamp{{{RANK_3},instance="b",kind="died"}}': "1x99"},
        {'{instance="b",verdict="rank died"}': 1}, letter="B",
    ),
    "a run that hangs has no speed": Case(
        "run", "Progress",
        {'run:train_step:max{run="r"}': "90x99", 'run:speed_loss:ratio{run="r",unit="mfu"}': "0x99",
         'run:overdue_seconds:min{run="r"}': "60x99"},
        {'{line="step"}': 90}, then=" > 0",
    ),
    "the time left does not wait for a step": Case(
        "run", "Progress",
        {'run:train_step:max{run="r"}': "90x99", 'run:step_interval_seconds:p50{run="r"}': "200x99",
         'tachograph_train_total_steps{run="r",rank="0",instance="a"}': "100x99",
         'run:speed_loss:ratio{run="r",unit="mfu"}': "0.25x99", 'run:checkpoint_age_seconds:min{run="r"}': "60x99",
         'run:progress_timestamp_seconds:max{run="r"}': "470x99"},
        {'{line="step"}': 90, '{line="time left"}': 2000, '{line="speed"}': 0.75,
         '{line="since step"}': 10, '{line="since save"}': 60},
    ),
}  # fmt: skip


def test_what_panels_say(
    dashboards: dict[str, Json], expressions: ModuleType, programs: Mapping[str, Path], tmp_path: Path
) -> None:
    """By promtool, with run r chosen and else what a person finds."""
    tests = []
    for name, case in CASES.items():
        dashboard = dashboards[case.dashboard]
        targets = {
            (panel["title"], target["refId"]): target["expr"]
            for panel in expressions.panels(dashboard)
            for target in panel.get("targets", [])
        }
        targets |= {(mark["name"], "A"): mark["expr"] for mark in dashboard["annotations"]["list"]}
        chosen = expressions.defaults(dashboard, "r") | {"run": "r"}
        asked = {
            "expr": f"({expressions.filled(targets[case.title, case.letter], chosen)}){case.then}",
            "eval_time": f"{case.at}s",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in case.answers.items()],
        }
        series = [{"series": selector, "values": values} for selector, values in case.series.items()]
        tests.append({"name": name, "interval": "5s", "input_series": series, "promql_expr_test": [asked]})
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({"tests": tests}))
    done = subprocess.run(
        [programs["promtool"], "test", "rules", path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
