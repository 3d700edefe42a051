"""What nodes say of the ranks that a scenario gives, where it does not say that itself: rules before all others.

For scenarios from before nodes concluded this; those that are written anew give `tachograph_run_…` themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

UP = 'tachograph_rank_up{run!~"GIVEN"}'
STATE = 'tachograph_rank_state{run!~"GIVEN"} == 1'
SHOWN = "group by (run, instance) (tachograph_rank_up or tachograph_run_ranks)"
SIZE = 'group by (run, instance, world_size) (tachograph_rank_info{world_size!="",run!~"GIVEN"})'
SAVED = (
    'max by (run, instance) (NAME{run!~"GIVEN"}) or '
    f'max by (run, instance) (last_over_time(NAME{{run!~"GIVEN"}}[6h])) and on (run, instance) {SHOWN}'
)
DERIVED: Mapping[str, tuple[str, str]] = {
    "tachograph_run_ranks": (
        "tachograph_rank_up",
        f"count by (run, instance, state) ({STATE}) or on (run, instance) ("
        f'label_replace(count by (run, instance) ({UP} == 1), "state", "running", "", "") or '
        f'label_replace(count by (run, instance) ({UP} == 0), "state", "dead", "", ""))',
    ),
    "tachograph_run_world_size": (
        "tachograph_rank_up|tachograph_run_ranks|tachograph_rank_info",
        "max by (run, instance) (histogram_quantile(1, "
        f'label_replace({SIZE}, "le", "$1", "world_size", "(.+)") or label_replace({SIZE}, "le", "+Inf", "", ""))) '
        f"or on (run, instance) ({SHOWN} * on (run) group_left () count by (run) (group by (run, rank) ({UP})) "
        f'or {SHOWN} * on (run) group_left () sum by (run) (tachograph_run_ranks{{run!~"GIVEN"}}))',
    ),
    "tachograph_run_limit": (
        "tachograph_train_threshold",
        'label_replace(max by (run, instance, name) (tachograph_train_threshold{run!~"GIVEN"}), '
        '"set_by", "run", "", "")',
    ),
    "tachograph_run_tier_info": (
        "tachograph_train_config_info",
        'group by (run, instance, tier) (tachograph_train_config_info{tier=~"hero|dev",run!~"GIVEN"})',
    ),
    "tachograph_run_checkpoint_timestamp_seconds": (
        "tachograph_train_checkpoint_timestamp_seconds",
        SAVED.replace("NAME", "tachograph_train_checkpoint_timestamp_seconds"),
    ),
    "tachograph_run_checkpoint_step": (
        "tachograph_train_checkpoint_step",
        SAVED.replace("NAME", "tachograph_train_checkpoint_step"),
    ),
}
GROUP = "what-nodes-say"


def node_series(scenario: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rules that say what a scenario leaves out; runs of which it says it are left out of each."""
    given = [one["series"] for one in scenario.get("input_series", ())]
    rules = []
    for name, (source, expression) in DERIVED.items():
        if any(re.match(rf"({source})\b", series) for series in given):
            runs = {
                run
                for series in given
                if series.startswith(f"{name}{{")
                for run in re.findall(r'\brun="(.*?)"', series)
            }
            rules.append({"record": name, "expr": expression.replace("GIVEN", "|".join(sorted(runs)) or "-")})
    return rules
