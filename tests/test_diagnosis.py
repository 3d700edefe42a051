"""Each number of the diagnosis is the one of the alert rule that its docstring names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from tachograph import diagnosis as d
from tachograph.catalog.gpu import CLOCK_EVENT_REASONS
from tachograph.catalog.rank import PAUSES, PHASES, STATES

RULES = Path(__file__).resolve().parents[1] / "prometheus/rules"
NUMBER = r"(\d+(?:\.\d+)?(?:e\d+)?)"


@cache
def rules() -> dict[str, str]:
    """Return the expression of each rule, in one line; of an alert with several, and its annotations, all of them."""
    found: dict[str, str] = {}
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                name = rule.get("record") or rule["alert"]
                text = " ".join([rule["expr"], *rule.get("annotations", {}).values()])
                found[name] = " ".join([found.get(name, ""), *text.split()])
    return found


LIMITS = {
    "SPIKE_STEPS": ("LossSpikeNotRecovering", rf"tachograph_run_loss_spike_steps\) >= {NUMBER}"),
    "FIRST_STEPS_SECONDS": ("run:hung_seconds:min", rf"run:start_stalled_seconds:min > {NUMBER} or"),
    "FIRST_STEPS_APART_SECONDS": ("run:hung_seconds:min", rf"run:start_stalled_seconds:min > {NUMBER} and"),
    "TOLD_SECONDS": ("run:hung_seconds:min", rf'kind="told"}}.{{0,60}} < {NUMBER}'),
    "STILL_SECONDS": ("run:standstill_limit_seconds:max", rf"tachograph_run_ranks \) > {NUMBER} and"),
    "CROWD": ("RunHung", rf"count by \(run\) \(rank:hang_suspect:behind\) <= {NUMBER}\)"),
    "LAG_SECONDS": ("rank:late_ratio:mean", rf"rank:lag(?:_growth)?_seconds:mean > {NUMBER}\)"),
    "LAG_RATIO": ("rank:late_ratio:mean", rf"run:step_interval_seconds:p50\[5m\]\) > {NUMBER}"),
    "STRAGGLER_WAIT": (
        "rank:straggler:level",
        rf"< on \(run\) group_left \(\) \({NUMBER} \* run:collective_wait_per_step_seconds:median\)",
    ),
    "SLOWDOWN_RATIO": (
        "node:handicap:value",
        rf"node:gpu_(?:thermal_slowdown|power_braked):ratio > {NUMBER}",
    ),
    "CRC_ERRORS_PER_MINUTE": ("node:gpu_nvlink_errors_per_minute:mean5m", rf'=~"crc_[^>]*>= {NUMBER}'),
    "LINK_RETRIES_PER_MINUTE": ("node:gpu_nvlink_errors_per_minute:mean5m", rf'!~"crc_[^>]*>= {NUMBER}'),
    "UNKNOWN_LINK_REPLAYS": ("node:gpu_pcie_replays_per_minute:mean5m", rf"> {NUMBER}"),
    "FULL_GPU_RATIO": ("MemoryNearlyFull", rf"clamp_max\(.*?, {NUMBER}\)"),
    "FULL_GPU_BYTES": ("MemoryNearlyFull", rf"clamp_max\(1 - {NUMBER} /"),
    "SLOW_CLOCK_RATIO": ("node:gpu_clock_of_peers:ratio", rf"median < {NUMBER}"),
    "BUSY_GPU_RATIO": ("node:gpu_sm_clock_hertz:mean30s", rf"> {NUMBER} \)"),
    "PORT_ERRORS_PER_HOUR": ("NicErrorsRising", rf"increase1h\) > {NUMBER}"),
    "READINGS_STALE_SECONDS": ("NvmlCollectorStale", rf'collector="gpu"}}\) > {NUMBER}'),
}
"""Number -> the rule that holds it, and where in the rule."""


@pytest.mark.parametrize("name", LIMITS)
def test_a_number_is_that_of_its_rule(name: str) -> None:
    """The number is the one of the rule, wherever the rule has it."""
    rule, pattern = LIMITS[name]
    assert {float(number) for number in re.findall(pattern, rules()[rule])} == {float(getattr(d, name))}


OF_THE_NODE = {
    "HANG_STEPS", "LONG_STEP_SECONDS", "UNKNOWN_STEP_SECONDS", "STALL_SECONDS", "STALL_STEPS", "OLD_SECONDS",
    "MEMORY_FULL_RATIO",
}  # fmt: skip
"""What the node alone uses: tachograph_run_hang_limit_seconds, and what a screen says before anybody is paged."""


def test_every_number_has_its_rule() -> None:
    """There is no number that comes from no rule, nor from the node."""
    numbers = {name for name, value in vars(d).items() if name.isupper() and isinstance(value, int | float)}
    assert numbers == set(LIMITS) | OF_THE_NODE


def test_words_are_those_of_the_rules() -> None:
    """Phases, reasons for lower clocks, and actions of Xids are sorted as the rules sort them."""
    found = rules()

    def matching(rule: str, label: str, operator: str = "=~") -> re.Pattern[str]:
        (pattern,) = set(re.findall(rf"{label}{operator}[\"']([^\"']+)", found[rule]))
        return re.compile(pattern)

    def matched(rule: str, label: str, words: tuple[str, ...], operator: str = "=~") -> set[str]:
        return {word for word in words if matching(rule, label, operator).fullmatch(word)}

    phases = [
        {word for word in PHASES if word in found.split("|")}
        for found in re.findall(r'phase=~"([^"]+)"', rules()["run:standstill_limit_seconds:max"])
        if found != ".+"
    ]
    assert [phases[0], phases[-1]] == [frozenset(PAUSES), d.WAITING_PHASES]
    assert set(map(frozenset, phases)) == {frozenset(PAUSES), frozenset({*PAUSES, "other"}), d.WAITING_PHASES}
    assert matching("GpuLost", "action", "!~").pattern.split("|") == sorted(d.XID_OF_PROGRAM, reverse=True)
    for cause, rule, operator in (
        (d.THERMAL, "node:gpu_thermal_slowdown:ratio", "=~"),
        (d.POWER_CAP, "node:gpu_power_capped:ratio", "="),
        (d.POWER_BRAKE, "node:gpu_power_braked:ratio", "=~"),
    ):
        reasons = (*CLOCK_EVENT_REASONS, "thermal")
        assert matched(rule, "reason", reasons, operator) == {
            each for each in reasons if d.slowdown_cause(each) == cause
        }
        assert float(re.findall(rf">= {NUMBER}", found[rule])[0]) == d.SLOWDOWN_RATIO
        assert f'cause="{cause.replace(" ", "_")}"' in found[rule]
    assert set(d.STATES) == {"hung", "overdue", *STATES}
    assert d.slowdown_cause("gpu_idle") == ""


def test_suspects_come_in_the_order_of_the_rules() -> None:
    """Not waiting, who stopped first or is behind; else who stopped first; else not waiting: as on the node."""
    order = re.findall('run:collectives_apart:count|why="(?:elsewhere|behind)"', rules()["rank:hang_suspect:behind"])
    first, elsewhere, behind = "run:collectives_apart:count", ['why="elsewhere"'] * 2, ['why="behind"'] * 2
    assert order[:-1] == [first, *elsewhere, *elsewhere, first, *behind, *elsewhere]
    assert order[-1] == first  # whether the run hangs


def test_what_a_step_of_a_loop_that_generates_goes_into() -> None:
    """Generation by its phases, the update, and what is waiting; nothing of a loop that does not generate."""
    phases = {"data": 0.25, "forward": 0.5, "backward": 1.0, "other": 0.125, "collective": 0.75}
    assert d.step_parts(phases) == {}
    assert d.step_parts({**phases, "reward": 0.0, "generate": 4.0}) == {
        "generate": 4.0, "reward": 0.0, "update": 1.625, "idle": 1.0,
    }  # fmt: skip
