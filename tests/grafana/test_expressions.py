"""Every expression of every dashboard, panels, marks and variables: it parses, and all its names exist."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import pytest
import yaml

from tachograph.catalog import index as c

Json = dict[str, Any]
ANYWHERE = {"instance", "job", "cluster"}
"""Labels that a scrape, or whoever collects from several Prometheis, puts on every series."""
OF_OTHERS = ("prometheus_", "alertmanager_", "process_", "scrape_", "vllm:", "sglang:", "slurm_", "kube_")
"""Beginnings of names that real programs show in test_queries.py, and of engines' own, which it imitates."""
UNUSED_BY_RULES = {
    "node_disk_read_bytes_total": "diskstats",
    "node_filesystem_avail_bytes": "filesystem",
    "node_filesystem_readonly": "filesystem",
    "node_filesystem_size_bytes": "filesystem",
    "node_infiniband_local_ack_timeout_errors_total": "infiniband",
    "node_infiniband_np_cnp_packets_sent_total": "infiniband",
    "node_infiniband_port_data_transmitted_bytes_total": "infiniband",
    "node_memory_MemAvailable_bytes": "meminfo",
    "node_memory_MemTotal_bytes": "meminfo",
    "node_network_receive_bytes_total": "netdev",
}
"""node_exporter's metrics that panels alone read -> its collector, which is on by default."""


def selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    """Yield every vector selector below a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for part in ("expr", "lhs", "rhs", "param", "vs", "vector_selector", "args"):
        child = getattr(node, part, None)
        for one in child if isinstance(child, list) else [child]:
            if one is not None and not isinstance(one, (str, int, float)):
                yield from selectors(one)


def asked_names(selector: promql_parser.VectorSelector) -> list[str]:
    """Return the names a selector can match."""
    if selector.name:
        return [selector.name]
    return [name for one in selector.matchers.matchers if one.name == "__name__" for name in one.value.split("|")]


@pytest.fixture(scope="module")
def families(rules: list[Json]) -> dict[str, set[str] | None]:
    """Every name there is with its own labels; None where only the rules know them."""
    found: dict[str, set[str] | None] = {"ALERTS": None, "ALERTS_FOR_STATE": None, "up": set()}
    for rule in rules:
        found |= {name: None for one in selectors(promql_parser.parse(rule["expr"])) for name in asked_names(one)}
    found |= {rule["record"]: None for rule in rules if "record" in rule} | dict.fromkeys(UNUSED_BY_RULES)
    for row in c.METRICS:
        found[row.name] = set(row.labels)
        if row.kind == c.HISTOGRAM:
            found |= {f"{row.name}_{end}": {*row.labels, "le"} for end in ("bucket", "sum", "count")}
    return found


def unknown(expression: str, families: Mapping[str, set[str] | None]) -> list[str]:
    """Return the names and labels of an expression that do not exist."""
    wrong = []
    for selector in selectors(promql_parser.parse(expression)):
        labels = {matcher.name for matcher in selector.matchers.matchers} - ANYWHERE - {"__name__"}
        for name in asked_names(selector):
            if name.startswith(OF_OTHERS):
                continue
            if name not in families:
                wrong.append(f"{name} does not exist")
            elif (own := families[name]) is not None and selector.name and not labels <= own:
                wrong.append(f"{name} has no {labels - own}")
    return wrong


def test_every_metric_and_label_exists(
    dashboard: Json, families: Mapping[str, set[str] | None], expressions: ModuleType, fill: Any
) -> None:
    """A renamed metric breaks this test and not the screen of someone on call."""
    asked = list(expressions.asked(dashboard))
    assert len(asked) > 20
    for one in asked:
        assert unknown(fill(dashboard, one.expression), families) == [], one.place


@pytest.mark.parametrize(
    "expression",
    [
        "run:mfu:ratoi",
        'tachograph_train_losss{run="x"}',
        'tachograph_train_loss{ranks="1"}',
        "rate(node_cpu_total[1m])",
    ],
)
def test_a_misspelt_name_is_found(expression: str, families: Mapping[str, set[str] | None]) -> None:
    """The check of names can fail."""
    assert unknown(expression, families)


def test_promtool_accepts_every_expression(
    dashboards: dict[str, Json], expressions: ModuleType, fill: Any, programs: Mapping[str, Path], tmp_path: Path
) -> None:
    """Expressions that the parser library accepts are also accepted by both generations of Prometheus."""
    found = {fill(board, one.expression) for board in dashboards.values() for one in expressions.asked(board)}
    group = {"name": "all", "rules": [{"record": f"query:{i}", "expr": text} for i, text in enumerate(sorted(found))]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}), encoding="utf-8")
    check = [programs["promtool"], "check", "rules", "--lint=none", tmp_path / "rules.yml"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(found) > 300
