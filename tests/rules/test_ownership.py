"""A run's verdicts rest on its own ranks: whoever else uses its name is left out of each, wherever rules read ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as p
import pytest
import yaml

from tools.mutation.ownership import OWNERSHIP, RANKS, STRANGERS, children, leak

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"


def groups() -> list[Any]:
    """Return every group but that which finds the strangers, and those of the GPUs alone."""
    files = [path for path in sorted(RULES.glob("*.yml")) if path.name != OWNERSHIP]
    return [
        group for path in files for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]
    ]


@pytest.mark.parametrize(
    ("expression", "left"),
    [
        ("max by (run) (tachograph_train_step)", "tachograph_train_step"),
        ("max by (run) (tachograph_train_step unless on (run, rank, instance) rank:stranger:info)", ""),
        ("max by (run) (tachograph_train_step unless on (run) rank:stranger:info)", "tachograph_train_step"),
        ("tachograph_train_loss != 0", "tachograph_train_loss"),
        ("rank:lag:ratio and on (run, rank, instance) (tachograph_rank_up == 1)", ""),
        ("rank:lag:ratio unless on (run, rank) (tachograph_rank_up == 1)", "tachograph_rank_up"),
        ("run:ranks:count and on (run) tachograph_rank_up", "tachograph_rank_up"),
        ("time() - max by (run) (tachograph_train_checkpoint_timestamp_seconds)",
         "tachograph_train_checkpoint_timestamp_seconds"),
        ("sum by (run) (tachograph_train_lost_seconds_total)", "tachograph_train_lost_seconds_total"),
        ("sum by (run) (tachograph_train_lost_seconds_total unless on (run, instance) node:stranger:info)", ""),
    ],
)  # fmt: skip
def test_a_leak_is_found(expression: str, left: str) -> None:
    """What follows would be no test if it let these pass."""
    assert leak(expression) == left


def test_no_verdict_listens_to_strangers() -> None:
    """Every rule leaves them out before it looks further than one rank."""
    leaks = {
        f"{group['name']}: {rule.get('record') or rule['alert']}": found
        for group in groups()
        for rule in group["rules"]
        if rule.get("record") != STRANGERS and (found := leak(rule["expr"]))
    }
    assert not leaks


OVER_TWO_SAMPLES = {"rate", "increase", "delta", "resets"}
PATIENT = {
    "amp": "five minutes of skipped steps, the highest scale of a minute",
    "batches": "three evaluations within a minute",
    "data": "the median of two minutes",
    "efficiency": "an alert's minute, sums and averages over one",
    "efficiency-detail": "panels",
    "goodput": "an hour, and three",
    "exporter": "minutes without a rank that has left",
    "failures": "a week",
    "checkpoint-age": "minutes beyond the usual interval",
    "gpu-ranks": "labels of faults of real GPUs",
    "invariants": "three evaluations within a minute",
    "memory": "half an hour of a leak, ten minutes of retries",
    "misuse": "a minute",
    "nccl": "minutes of bandwidth",
    "network": "labels of faults of real ports",
    "pace": "a start of half an hour, last seen within 15 s",
    "skew": "20 s and a scrape",
    "skew-baseline": "half an hour",
    "skew-phases": "text of an alert",
    "slowdown": "text of an alert after minutes",
    "step-desync": "a minute",
}
"""Groups that read moments, and what their verdicts wait for: longer than it takes until every stranger is known."""


def moments(node: Any, *, windowed: bool = False) -> Iterator[str]:
    """Yield what an expression reads of ranks at one moment: a single scrape is enough to have a say in it."""
    if isinstance(node, p.VectorSelector) and node.name in RANKS and not windowed:
        yield node.name
    windowed |= isinstance(node, p.Call) and node.func.name in OVER_TWO_SAMPLES
    for part in children(node):
        yield from moments(part, windowed=windowed)


def test_nobody_is_heard_before_it_is_known_whose_it_is() -> None:
    """Strangers are looked for every 10 s; where a moment is enough, another user's ranks are left out at once."""
    first_rules = set()
    for group in groups():
        name = group["name"].removeprefix("tachograph-")
        own = [rule["expr"] for rule in group["rules"] if rule.get("record") != STRANGERS]
        hears = any(STRANGERS in one and any(True for _ in moments(p.parse(one))) for one in own)
        first = group["rules"][0]
        if hears and name not in PATIENT:
            assert first.get("record") == STRANGERS, name
            assert first["labels"] == {"judge": name}
            first_rules.add(first["expr"])
        else:
            assert first.get("record") != STRANGERS, f"{name}: nothing asks for it"
    assert len(first_rules) == 1, first_rules


Labels = dict[str, str]
SUBJECTS = ("progress", "runs", "ranks", "learning", "restarts", "exporter", OWNERSHIP.removesuffix(".yml"))
"""The last one finds the strangers: every other rule looks before it does."""

ANOTHER_USER = {"rank": "9999", "instance": "x", "owner": "1001", "world_size": "10000"}
SAME_RANK_OF_ANOTHER_USER = {"rank": "1", "instance": "x", "owner": "1001", "world_size": "4"}
ANOTHER_SIZE = {"rank": "5", "instance": "n1", "owner": "1000", "world_size": "8"}
BEYOND = {"rank": "9999", "instance": "n0", "owner": "1000", "world_size": "4"}
TWICE = {"rank": "1", "instance": "x", "owner": "1000", "world_size": "4"}
HANG_AT, STRANGER_AT = 100, 80
KNOWN_AT_ONCE = {
    "another user": ANOTHER_USER,
    "the same rank of another user": SAME_RANK_OF_ANOTHER_USER,
    "beyond the world": BEYOND,
}
KNOWN_BEFORE_LONG = {"another size": ANOTHER_SIZE, "a second one": TWICE}
"""Of the run's own user, who has no reason to hide anything: for up to 10 s it has a say."""


def at(seconds: int) -> int:
    """Return how many samples come before a moment."""
    return seconds // 5


def series(name: str, labels: Labels, values: str) -> dict[str, str]:
    text = ",".join(f'{key}="{value}"' for key, value in ({"run": "r"} | labels).items())
    return {"series": f"{name}{{{text}}}", "values": values}


def rank(seat: Labels, **shown: str) -> list[dict[str, str]]:
    """Return what an exporter shows of a rank, from the start unless `shown` says otherwise."""
    place = {"rank": seat["rank"], "instance": seat["instance"]}
    info = {"local_rank": "0", "attempt": "0", "gpu": "", "uuid": ""} | seat
    found = [series("tachograph_rank_info", info, shown.pop("info", "1x200"))]
    facts = place | {"owner": seat["owner"], "world_size": seat["world_size"]}
    found.append(
        series(
            "tachograph_rank_new_info",
            place | {"owner": seat["owner"]},
            found[0]["values"].rpartition("1x")[0] + "1x12 stale",
        )
    )
    if int(seat["rank"]) >= int(seat["world_size"]):
        found.append(series("tachograph_rank_beyond_world_info", facts, found[0]["values"]))
    for name, values in shown.items():
        metric, _, label = name.partition("__")
        own = dict([label.split("_", 1)]) if label else {}
        found.append(series(f"tachograph_{metric}", place | own, values))
    return found


def own(*, hangs: bool, ranks: int = 4) -> Iterator[dict[str, str]]:
    """Yield a run of four, two on a node, which steps every second, until it hangs."""
    steps = f"0+5x{at(HANG_AT)} {HANG_AT}x200" if hangs else "0+5x200"
    phase = f"0.1x{at(HANG_AT)} 0+5x200" if hangs else "0.1x200"
    for i in range(ranks):
        yield from rank(
            {"rank": str(i), "instance": f"n{i // 2}", "owner": "1000", "world_size": "4"},
            rank_up="1x200", rank_state__state_running="1x200", rank_heartbeat_timestamp_seconds="0+5x200",
            rank_progress_timestamp_seconds=steps, train_steps_total=steps, train_step=steps, train_loss="2x200",
            train_recent_step_seconds="1x200", rank_phase_seconds__phase_backward=phase,
        )  # fmt: skip


def liar(seat: Labels) -> list[dict[str, str]]:
    """Return a stranger that makes steps, evaluates, sets limits, loses its loss, and dies at 300 s."""
    late, alive = f"_x{at(STRANGER_AT)}", at(300 - STRANGER_AT) - 1
    return rank(
        seat, info=f"{late} 1x100", rank_up=f"{late} 1x{alive} 0x60",
        rank_state__state_running=f"{late} 1x{alive} 0x60",
        rank_ended_timestamp_seconds__reason_died=f"{late} _x{alive + 1} 300x60",
        rank_heartbeat_timestamp_seconds=f"{late} {STRANGER_AT}+5x{alive} 300x60",
        rank_progress_timestamp_seconds=f"{late} 1000000+5x100", train_step=f"{late} 1000000+5x100",
        train_steps_total=f"{late} 0+5x100", rank_phase_seconds__phase_eval=f"{late} 1000+5x{alive}",
        train_threshold__name_hang_seconds=f"{late} 1000000000x100", train_loss=late + " NaN" * 100,
        train_nonfinite_step__source_loss=f"{late} 1x100", train_restarts_total=f"{late} 0+1x100",
        train_recent_step_seconds=f"{late} 1000x100",
    )  # fmt: skip


def firing(alert: str, moment: str, *labels: str) -> dict[str, Any]:
    """Return the check that an alert of the run fires with these labels, or does not."""
    text = 'alertname="{}",alertstate="firing",severity="{}",component="tachograph",tier="standard",run="r"{}'
    severity = "warning" if alert == "RunNameShared" else "critical"
    return {
        "expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}', "eval_time": moment,
        "exp_samples": [{"labels": f"ALERTS{{{text.format(alert, severity, one)}}}", "value": 1} for one in labels],
    }  # fmt: skip


FILES = [RULES / f"{name}.yml" for name in SUBJECTS]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("files", "strangers"),
    [
        pytest.param(FILES, KNOWN_AT_ONCE, id="looked for last"),
        pytest.param([FILES[-1], *FILES[:-1]], KNOWN_AT_ONCE | KNOWN_BEFORE_LONG, id="looked for first"),
    ],
)
def test_a_stranger_neither_silences_nor_pages(
    files: list[Path], strangers: Mapping[str, Labels], rule_tests: Any
) -> None:
    """Whatever it says, from its first sample until after its death: the run hangs, and nothing else happens.

    A second rank of the same number may be that of another job of the name, so its death is told.
    """
    rule_tests(files, *(
        {
            "name": name, "interval": "5s", "input_series": [*own(hangs=True), *liar(seat)],
            "promql_expr_test": [
                firing("RunHung", "115s"), firing("RunHung", "125s", ""), firing("RunHung", "10m", ""),
                *(firing("LossNotFinite", moment) for moment in ("80s", "85s", "90s", "200s", "310s")),
                firing("RankDead", "300s"),
                *(firing("RankDead", moment, *dies) for moment in ("305s", "320s", "500s")),
                firing("RunNameShared", "200s"), firing("RunNameShared", "290s", ""),
                {"expr": "run:hang_threshold:seconds", "eval_time": "200s",
                 "exp_samples": [{"labels": 'run:hang_threshold:seconds{run="r"}', "value": 15}]},
                {"expr": "run:train_step:max", "eval_time": "200s",
                 "exp_samples": [{"labels": 'run:train_step:max{run="r"}', "value": HANG_AT}]},
            ],
        }
        for name, seat in strangers.items()
        for dies in [[',rank="1",instance="x"'] if seat is TWICE else []]
    ))  # fmt: skip


def test_a_stranger_that_lost_its_loss_first_does_not_hide_the_culprit(rule_tests: Any) -> None:
    """Rank 2 loses its loss at step 200, a stranger at step 1 of its own: rank 2 is the one that is named."""
    culprit = {"rank": "2", "instance": "n1"}
    sound = [
        one for one in own(hangs=False)
        if not (one["series"].startswith("tachograph_train_loss{") and 'rank="2"' in one["series"])
    ]  # fmt: skip
    lost = [
        series("tachograph_train_loss", culprit, f"2x{at(200) - 1}" + " NaN" * 100),
        series("tachograph_train_nonfinite_step", culprit | {"source": "loss"}, f"_x{at(200)} 200x100"),
    ]
    rule_tests(FILES, {
        "name": "lost", "interval": "5s", "input_series": [*sound, *lost, *liar(ANOTHER_USER)],
        "promql_expr_test": [
            {"expr": expr, "eval_time": "215s", "exp_samples": [{"labels": '{rank="2"}', "value": 1}]}
            for expr in (
                "group by (rank) (rank:loss_nonfinite_step:min)",
                "group by (rank) (rank:loss_nonfinite_suspect:group)",
                'group by (rank) (ALERTS{alertname="LossNotFinite",alertstate="firing"})',
            )
        ],
    })  # fmt: skip


def test_the_dead_keep_their_run(rule_tests: Any) -> None:
    """Whoever is left when all ranks of a run have died does not speak for it: neither up, nor finished."""
    died = [
        one
        for i in range(4)
        for one in rank(
            {"rank": str(i), "instance": f"n{i // 2}", "owner": "1000", "world_size": "4"},
            rank_up="1x20 0x180",
            rank_state__state_running="1x20 0x180",
            rank_ended_timestamp_seconds__reason_died="_x21 100x180",
        )
    ]
    left = rank(ANOTHER_USER, info="_x40 1x160", rank_up="_x40 1x160", rank_state__state_running="_x40 1x20 0x140",
                rank_ended_timestamp_seconds__reason_finished="_x61 300x140")  # fmt: skip
    rule_tests(FILES, {
        "interval": "5s", "input_series": [*died, *left],
        "promql_expr_test": [
            firing("RunDown", "5m", ""), firing("RunDown", "10m", ""),
            {"expr": "group by (rank) (rank:stranger:info)", "eval_time": "4m",
             "exp_samples": [{"labels": '{rank="9999"}', "value": 1}]},
        ],
    })  # fmt: skip
