"""The contract between exporter, rules, runbooks and tests: every name exists, and nothing is forgotten.

The labels of each expression are worked out from the catalog, so that a join on a label that one side lacks, which
Prometheus answers with silence, is an error here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser as p
import pytest
import yaml

from tachograph.catalog import index as catalog
from tachograph.findings.kinds import severities

ROOT = Path(__file__).resolve().parents[2]
DCGM_RULES = "dcgm.yml"
RUNBOOK_URL = "https://github.com/tachograph/tachograph/blob/main/runbooks/{}.md"
NOBODYS = {"TachographWatchdog", "StorageSlow", "NodesUnreachable"}
"""Alerts about no single run or node."""

SEVERITIES = {"critical", "warning", "info", "none"}
ALERT_LABELS = frozenset({"severity", "component", "tier", "run", "rank", "instance", "gpu", "uuid", "user"})
TIER = (
    '{{ with printf "run:tier:info{run=%q}" $labels.run | query }}'
    '{{ . | first | label "tier" }}{{ else }}standard{{ end }}'
)
"""Never empty: of a label that comes out empty Prometheus writes the template itself into ALERTS."""

LEVELS: Mapping[str, frozenset[str]] = {
    "rank": frozenset({"run", "rank", "instance"}),
    "node": frozenset({"instance"}),
    "run": frozenset({"run"}),
    "cluster": frozenset(),
}
"""Level of a recorded series -> the labels it must have; `run:` and above have no rank."""

TARGET = frozenset({"job", "instance"})
NODE_EXPORTER: Mapping[tuple[str, ...], str] = {
    (): "load1 memory_MemAvailable_bytes memory_MemTotal_bytes pressure_cpu_waiting_seconds_total "
    "pressure_io_stalled_seconds_total pressure_memory_stalled_seconds_total",
    ("collector",): "scrape_collector_success",
    ("device",): "network_up network_speed_bytes network_receive_bytes_total network_transmit_bytes_total "
    "network_receive_errs_total network_receive_frame_total",
    ("device", "fstype", "mountpoint"): "filesystem_avail_bytes filesystem_size_bytes filesystem_readonly",
    ("device", "board_id", "firmware_version", "hca_type"): "infiniband_info",
    ("device", "port"): "infiniband_state_id infiniband_physical_state_id infiniband_rate_bytes_per_second "
    "infiniband_symbol_error_total infiniband_link_error_recovery_total infiniband_port_errors_received_total "
    "infiniband_local_link_integrity_errors_total infiniband_local_ack_timeout_errors_total "
    "infiniband_np_cnp_packets_sent_total infiniband_rx_icrc_encapsulated_errors_total "
    "infiniband_port_data_received_bytes_total infiniband_port_data_transmitted_bytes_total",
}
"""What node_exporter's metrics are labelled with, and their names without `node_`."""

DCGM_LABELS = frozenset({"gpu", "UUID", "modelName", "pci_bus_id", "GPU_I_ID", "DCGM_FI_DRIVER_VERSION"})

OUTSIDE: Mapping[str, frozenset[str]] = {
    "up": TARGET | {"run", "engine"},
    "scrape_duration_seconds": TARGET,
    "prometheus_rule_evaluation_failures_total": TARGET | {"rule_group"},
    "scrape_samples_scraped": TARGET,
    "ALERTS": ALERT_LABELS | {"alertname", "alertstate"},
    "ALERTS_FOR_STATE": ALERT_LABELS | {"alertname"},
    **{f"node_{name}": TARGET | set(labels) for labels, names in NODE_EXPORTER.items() for name in names.split()},
    **{twin.field: TARGET | DCGM_LABELS for row in catalog.METRICS for twin in row.dcgm},
    "DCGM_FI_DEV_XID_ERRORS": TARGET | DCGM_LABELS,
}
"""Metrics of others that may be used."""

OF_CELLS: Mapping[str, frozenset[str]] = {
    rule["record"]: frozenset(rule["labels"])
    for group in yaml.safe_load((ROOT / "prometheus/cells.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}
"""Labels that a recorded series also has if there are cells, so that rules can tell these."""

OVER_COUNTERS = frozenset({"rate", "irate", "increase", "resets"})
OVER_GAUGES = frozenset({"delta", "idelta", "deriv", "predict_linear"})


def families() -> dict[str, tuple[str, frozenset[str]]]:
    """Return the kind and labels of every series name the exporter exposes."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for row in catalog.METRICS:
        labels = TARGET | set(row.labels)
        if row.kind != catalog.HISTOGRAM:
            found[row.name] = row.kind, labels
            continue
        for end, more in (("bucket", {"le"}), ("sum", set()), ("count", set())):
            found[f"{row.name}_{end}"] = catalog.COUNTER, labels | more
    return found


class Checker:
    """Works out labels; `recorded` gives the labels of a recorded series, or None where there is no such series."""

    def __init__(self, recorded: Callable[[str], frozenset[str] | None]) -> None:
        self._families = families()
        self._recorded = recorded

    def check(self, expression: str) -> frozenset[str]:
        """Return the labels an expression's result can have; raise AssertionError for what does not exist."""
        return self._labels(p.parse(expression))

    def _selector(self, node: p.VectorSelector) -> frozenset[str]:
        name = node.name
        labels = self._families[name][1] if name in self._families else OUTSIDE.get(name) or self._recorded(name)
        assert labels is not None, f"{name} does not exist"
        unknown = {matcher.name for matcher in node.matchers.matchers} - labels - OF_CELLS.get(name, frozenset())
        assert not unknown, f"{name} has no label {unknown}"
        return labels

    def _call(self, node: p.Call) -> frozenset[str]:
        function = node.func.name
        for argument in node.args:
            if isinstance(argument, p.MatrixSelector):
                kind = self._families.get(argument.vector_selector.name, ("", frozenset()))[0]
                counts = kind in (catalog.COUNTER, catalog.NATIVE_HISTOGRAM)
                allowed = OVER_COUNTERS if counts else OVER_GAUGES
                wrong = (OVER_COUNTERS | OVER_GAUGES) - allowed
                assert not kind or function not in wrong, f"{function}() of a {kind}: {argument.vector_selector.name}"
        labels = [self._labels(argument) for argument in node.args]
        if function in ("label_replace", "label_join"):
            return labels[0] | {node.args[1].val}
        return frozenset().union(*labels) if function != "vector" else frozenset()

    def _aggregate(self, node: p.AggregateExpr) -> frozenset[str]:
        labels = self._labels(node.expr)
        if node.modifier is None:
            return labels if str(node.op) in ("topk", "bottomk") else frozenset()
        by = frozenset(node.modifier.labels)
        if str(node.op) == "count_values":
            return by | {node.param.val}
        assert by <= labels, f"{by - labels} is no label of what is aggregated: {labels}"
        if str(node.op) in ("topk", "bottomk"):
            return labels
        return by if node.modifier.type == p.AggModifierType.By else labels - by

    def _binary(self, node: p.BinaryExpr) -> frozenset[str]:
        left, right = self._labels(node.lhs), self._labels(node.rhs)
        scalars = [isinstance(side, p.NumberLiteral) or _scalar(side) for side in (node.lhs, node.rhs)]
        if any(scalars):
            return right if scalars[0] else left
        matching = node.modifier.matching if node.modifier else None
        if matching is not None and matching.type == p.LabelModifierType.Include:
            on = frozenset(matching.labels)
            assert on <= left & right, f"on ({on - (left & right)}): not on both sides of {node.op}"
        else:
            ignored = frozenset(matching.labels) if matching is not None else frozenset()
            fits = left - ignored == right - ignored or str(node.op) == "or"
            assert fits, f"{left} {node.op} {right} can never match"
        if str(node.op) == "or":
            return left | right
        many_right = node.modifier is not None and node.modifier.card == p.VectorMatchCardinality.OneToMany
        taken = frozenset(node.modifier.group_labels or () if node.modifier else ())
        one = left if many_right else right
        assert not matching or taken <= one, f"group_left ({taken - one}): not on the side that has one"
        return (right if many_right else left) | taken

    def _labels(self, node: object) -> frozenset[str]:
        if isinstance(node, p.MatrixSelector):
            return self._selector(node.vector_selector)
        if isinstance(node, (p.ParenExpr, p.UnaryExpr, p.SubqueryExpr)):
            return self._labels(node.expr)
        kinds = {p.VectorSelector: self._selector, p.Call: self._call, p.AggregateExpr: self._aggregate,
                 p.BinaryExpr: self._binary}  # fmt: skip
        work_out: Callable[[Any], frozenset[str]] | None = kinds.get(type(node))
        return work_out(node) if work_out else frozenset()  # a number or a string has none


def _scalar(node: object) -> bool:
    if isinstance(node, p.ParenExpr):
        return _scalar(node.expr)
    if isinstance(node, p.BinaryExpr):
        return _scalar(node.lhs) and _scalar(node.rhs)
    return isinstance(node, p.NumberLiteral) or (isinstance(node, p.Call) and node.func.name in ("time", "scalar"))


def outline(node: object) -> frozenset[str]:
    """Return the labels of what a rule records as far as its first aggregation tells, for one that reads itself."""
    if isinstance(node, p.AggregateExpr) and node.modifier is not None:
        return frozenset(node.modifier.labels) if node.modifier.type == p.AggModifierType.By else frozenset()
    if isinstance(node, p.BinaryExpr):
        return outline(node.lhs) or outline(node.rhs)
    return outline(node.expr) if isinstance(node, p.ParenExpr) else frozenset()


Rules = list[dict[str, Any]]


def checker_of(rules: Rules) -> Checker:
    """Return one that knows every metric, and every recorded series by working out its expression."""
    expressions = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    added = {rule["record"]: frozenset(rule.get("labels", {})) for rule in rules if "record" in rule}
    known: dict[str, frozenset[str]] = {}

    def recorded(name: str) -> frozenset[str] | None:
        if name not in expressions:
            return None
        if name not in known:
            known[name] = outline(p.parse(expressions[name])) | LEVELS[name.partition(":")[0]]
            known[name] = made.check(expressions[name]) | added[name]
        return known[name]

    made = Checker(recorded)
    return made


@pytest.fixture(scope="module")
def checker(rules: Rules) -> Checker:
    """Knows every metric and every recorded series."""
    return checker_of(rules)


def alerts(rules: Rules) -> list[tuple[str, dict[str, Any]]]:
    """Return every alert with its name."""
    return [(rule["alert"], rule) for rule in rules if "alert" in rule]


def test_every_expression_uses_what_exists(rules: Rules, checker: Checker) -> None:
    """Metrics, labels, matchers and joins of every rule fit the catalog; rate() takes counters, delta() gauges."""
    for rule in rules:
        name = rule.get("record") or rule["alert"]
        try:
            checker.check(rule["expr"])
        except AssertionError as error:
            pytest.fail(f"{rule['file']}: {name}: {error}")


UNCHANGED_BY_A_SECOND_JOB = {
    "sums over sums": ("run:step_seconds:mean1m", "run:mfu:ratio"),
    "quantiles of sums": ("run:step_seconds:p50", "run:step_seconds:p99"),
    "counts over counts": ("LossSpike", "ValidationLossSpike"),
    "counts jobs": ("ExporterScrapedTwice",),
    "zero or not": ("RecorderMisused",),
}  # fmt: skip
"""Rules that may add up what two jobs scrape, and why it changes nothing."""


class JobChecker(Checker):
    """Collects what would be another number, or fail, where a second job of Prometheus scrapes the same exporters."""

    def __init__(self, recorded: Callable[[str], frozenset[str] | None]) -> None:
        super().__init__(recorded)
        self.found: list[str] = []

    def _selector(self, node: p.VectorSelector) -> frozenset[str]:
        labels = super()._selector(node)
        return labels - {"job"} if node.name in OUTSIDE else labels

    def _aggregate(self, node: p.AggregateExpr) -> frozenset[str]:
        by = frozenset(node.modifier.labels) if node.modifier else frozenset()
        if str(node.op) in ("count", "sum") and "job" in self._labels(node.expr) - by:
            self.found.append(str(node))
        return super()._aggregate(node) if by <= self._labels(node.expr) else by

    def _binary(self, node: p.BinaryExpr) -> frozenset[str]:
        matching = node.modifier.matching if node.modifier else None
        if str(node.op) not in ("and", "or", "unless") and matching is not None:
            many = node.modifier.card
            ones = [node.lhs] * (many != p.VectorMatchCardinality.ManyToOne)
            ones += [node.rhs] * (many != p.VectorMatchCardinality.OneToMany)
            for one in ones:
                if "job" in self._labels(one) and "job" not in matching.labels:
                    self.found.append(str(node))
        try:
            return super()._binary(node)
        except AssertionError:  # on the job of somebody else's metrics, which is left out here
            return self._labels(node.lhs)


def test_a_second_job_that_scrapes_an_exporter_changes_no_verdict(rules: Rules, checker: Checker) -> None:
    """Each rank is counted once, and no join finds two: an exporter may be a target of two jobs."""
    allowed = {name for names in UNCHANGED_BY_A_SECOND_JOB.values() for name in names}
    for rule in rules:
        twice = JobChecker(checker._recorded)
        twice.check(rule["expr"])
        name = rule.get("record") or rule["alert"]
        assert not twice.found or name in allowed, f"{name}: {twice.found[0]}"
        allowed -= {name} if twice.found else set()
    assert not allowed, f"{allowed} need no exception"


def test_recorded_series_are_named_by_level_metric_and_operation(rules: Rules, checker: Checker) -> None:
    """`level:metric:operation`, with exactly the labels of its level: none of a finer one, none missing."""
    ours = families().keys()
    for name, file in ((rule["record"], rule["file"]) for rule in rules if "record" in rule):
        if file == DCGM_RULES and name in ours:
            continue
        level, metric, operation = name.split(":")
        labels = checker.check(name)
        assert LEVELS[level] <= labels, f"{name} lacks {LEVELS[level] - labels}"
        assert level in ("rank", "node") or not labels & {"rank", "instance", "job"}, f"{name} has {labels}"
        assert not metric.startswith("tachograph"), name
        assert operation, name


def queries(text: str) -> Iterator[str]:
    """Yield the PromQL that a template runs, with its placeholders filled."""
    for literal in re.findall(
        r'"((?:[^"\\]|\\.)*)"(?=(?:[^"{}]|"\.[+*]")*\| query|\s*\}\}?)|query "((?:[^"\\]|\\.)*)"', text
    ):
        expression = "".join(literal).replace('\\"', '"').replace("offset %s", "offset 5m")
        if "(" in expression or "{" in expression:
            expression = re.sub(r"%\[\d\]", "%", expression).replace("%%", "")
            filled = (
                expression.replace("%q", '"x"').replace("%g", "0.5").replace("{%s", '{run="x",rank="1",instance="n"')
            )
            yield filled.replace("%s", "tachograph_rank_up")  # an expression of its own, by rank


def test_queries_in_annotations_use_what_exists(rules: Rules, checker: Checker) -> None:
    """A text that asks Prometheus for a number asks for one that exists: else the page has a hole in it."""
    found = 0
    for name, rule in alerts(rules):
        written = rule["annotations"].get("description", "").count("query")
        asked = list(queries(rule["annotations"].get("description", "")))
        assert len(asked) == written, f"{name}: {written} queries written, {len(asked)} understood: {asked}"
        for expression in asked:
            try:
                checker.check(expression)
            except AssertionError as error:
                pytest.fail(f"{name}: {expression}: {error}")
        found += written
    assert found > 20


def test_every_alert_is_complete(rules: Rules, checker: Checker) -> None:
    """Severity, summary, description, runbook and dashboard; labels name a culprit and never hold a value."""
    stops_a_run = {
        name
        for name, rule in alerts(rules)
        if "critical" in severities(rule["labels"]["severity"]) and "run" in checker.check(rule["expr"])
    }
    for name, rule in alerts(rules):
        marked = severities(rule["labels"]["severity"])
        assert set(marked) <= SEVERITIES, name
        assert ("severity" in checker.check(rule["expr"])) == (len(marked) > 1), f"{name} marks tickets, and has none"
        assert rule["labels"]["component"] == "tachograph", name
        assert rule["labels"].keys() | checker.check(rule["expr"]) <= ALERT_LABELS, name
        notes = rule["annotations"]
        given = checker.check(rule["expr"])
        costs = {"cost"} if name in stops_a_run else set()
        box = {"blackbox_url"} if name in ("RunHung", "RankFrozen", "RankDead", "RankFailed") else set()
        assert notes.keys() == {"summary", "description", "runbook_url", "dashboard_url"} | costs | box, name
        if name != "StorageSlow":  # That of many runs.
            assert rule["labels"].get("tier") == (TIER if "run" in given else None), name
        assert notes["runbook_url"] == RUNBOOK_URL.format(name)
        url = re.match(r"http://localhost:3000/d/tachograph-(\w+)(\?|$)", notes["dashboard_url"])
        assert url, name
        if url[1] in ("run", "node"):
            filtered = set(re.findall(r"var-(\w+)=", notes["dashboard_url"]))
            assert filtered == (given & {"run", "rank"} if url[1] == "run" else {"instance"}), name
        assert "$value" not in str(rule["labels"]), name
        culprit = re.findall(r"\$labels\.(\w+)", notes["description"])
        assert name in NOBODYS or {"run", "instance"} & set(culprit), f"{name} names nobody"


def test_each_alert_is_one_rule_or_one_with_a_rank_and_one_without(rules: Rules, checker: Checker) -> None:
    """Then the labels differ, and no alert of one rule is ever one of the other, which would end it."""
    ranks: dict[str, list[bool]] = {}
    for name, rule in alerts(rules):
        ranks.setdefault(name, []).append("rank" in checker.check(rule["expr"]))
    assert {name: found for name, found in ranks.items() if len(found) > 1 and found != [True, False]} == {}


def test_every_group_has_an_interval() -> None:
    """Its own, so that windows over recorded series hold whatever evaluation interval a Prometheus is set to."""
    for path in sorted((ROOT / "prometheus/rules").glob("*.yml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            assert group.get("interval"), f"{path.name}: {group['name']} has no interval"


@cache
def cases_of(subject: str, alert: str) -> list[dict[str, Any]]:
    """Return what the rule tests of a subject, and those of an alert, assert of alerts."""
    files = [
        yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        for path in [
            *Path(__file__).parent.glob(f"{subject}/*.yml"),
            *Path(__file__).parent.glob(f"{alert}.yml"),
            *Path(__file__).parent.glob(f"{alert}/*.yml"),
        ]
    ]
    return [case for file in files for test in file["tests"] for case in test.get("alert_rule_test", [])]


def test_every_alert_has_a_test_that_fires_and_one_that_does_not(rules: Rules) -> None:
    """In its own file or the folder of its subject, with its full text; an alert without them cannot be shipped."""
    for name, rule in alerts(rules):
        subject = rule["file"].removesuffix(".yml")
        cases = [case for case in cases_of(subject, name) if case["alertname"] == name]
        assert any(case.get("exp_alerts") for case in cases), f"{subject}: nothing makes {name} fire"
        if name != "TachographWatchdog":  # which always does
            assert any(not case.get("exp_alerts") for case in cases), f"{subject}: nothing keeps {name} quiet"
        fired = {alert["exp_labels"]["severity"] for case in cases for alert in case.get("exp_alerts", [])}
        assert set(severities(rule["labels"]["severity"])) <= fired, f"{subject}: {name} fires as {fired} alone"


def test_every_recorded_series_is_used_or_documented(rules: Rules) -> None:
    """By a rule, a dashboard, a runbook or the list in prometheus/README.md; unused series are not recorded."""
    used = {
        found
        for rule in rules
        for text in (rule["expr"], *rule.get("annotations", {}).values())
        for found in re.findall(r"\b\w+:\w+:\w+", text)
        if found != rule.get("record")
    }
    for path in (*ROOT.glob("grafana/dashboards/*.json"), *ROOT.glob("runbooks/*.md"), ROOT / "prometheus/README.md"):
        used |= set(re.findall(r"\b\w+:\w+:\w+", path.read_text(encoding="utf-8")))
    recorded = {rule["record"] for rule in rules if "record" in rule} - families().keys()
    assert recorded <= used, recorded - used


def test_the_queries_of_runbooks_use_what_exists(checker: Checker) -> None:
    """Each line of PromQL in them is one that a tired person copies into Prometheus; tests/runbooks has the rest."""
    for path in sorted(ROOT.glob("runbooks/*.md")):
        text = path.read_text(encoding="utf-8")
        lines = [line for block in re.findall(r"```promql\n(.+?)```", text, re.DOTALL) for line in block.splitlines()]
        lines += re.findall(r"`(tachograph_\w+|[a-z]+:\w+:\w+)`", text)  # a series that the prose names
        for line in lines:
            try:
                if line.strip() and not line.startswith("#"):
                    checker.check(line)
            except (AssertionError, ValueError) as error:
                pytest.fail(f"{path.name}: {line}: {error}")
