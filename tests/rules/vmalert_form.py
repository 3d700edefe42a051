"""A file of rule tests for promtool in the form that `vmalert-tool unittest` reads.

- The tool evaluates all rules of a group at one moment, and a rule sees what another of its group recorded before. In
  groups of their own, in order, they see it at once, as in Prometheus.
- It gives alerts the label `alertgroup`; told not to, it does so later than at first, and an alert is there twice. So
  the label is expected, and taken from what queries find.
- Functions over a range and `round` keep a series' name in MetricsQL: it is taken from what queries find, too.
- Samples are written out one by one, because the tool reads no exponents. It stores no NaN: such a sample is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from tools.mutation.trial import read

Json = dict[str, Any]
ITEM = re.compile(
    r"(?P<first>stale|_|[+-]?(?:\d*\.?\d+(?:e[+-]?\d+)?|nan|inf))(?P<step>[+-]\d*\.?\d+(?:e[+-]?\d+)?)?(?:x(?P<times>\d+))?",
    re.I,
)


def written(tests: Path, folder: Path) -> Path:
    """Write a file of tests, and the rules that it loads, in the tool's form to a folder; return the tests' path."""
    given = read(tests)
    order: Sequence[str] = given.get("group_eval_order", ())
    groups: list[str] = []
    alerts: dict[str, str] = {}
    files = []
    for name in given["rule_files"]:
        path = (tests.parent / name).resolve()
        single = list(groups_of_one(read(path)["groups"]))
        groups += [group["name"] for group in single]
        alerts |= {group["rules"][0].get("alert", ""): group["name"] for group in single}
        files.append(str(folder / path.name))
        (folder / path.name).write_text(dumped({"groups": single}), encoding="utf-8")
    groups.sort(key=lambda name: order.index(base(name)) if base(name) in order else -1)
    every = given.get("evaluation_interval", "1m")
    made = {"rule_files": files, "evaluation_interval": every, "group_eval_order": groups}
    out = folder / "tests.yml"
    out.write_text(
        dumped({**made, "tests": [converted(one, every, alerts) for one in given["tests"]]}), encoding="utf-8"
    )
    return out


def dumped(content: Json) -> str:
    """Return YAML on long lines."""
    return str(yaml.dump(content, Dumper=yaml.CSafeDumper, width=1_000_000, allow_unicode=True))


def base(name: str) -> str:
    """Return the name of the group that a group of one rule is of."""
    return name.partition("#")[0]


def groups_of_one(groups: Sequence[Json]) -> Iterator[Json]:
    """Yield a group for each rule; rules of one alert stay together."""
    for group in groups:
        parts = groupby(enumerate(group["rules"]), lambda one: one[1].get("alert", one[0]))
        for number, (_, rules) in enumerate(parts):
            yield {**group, "name": f"{group['name']}#{number:02d}", "rules": [rule for _, rule in rules]}


def converted(test: Json, every: str, alerts: Mapping[str, str]) -> Json:
    """Return one test; `alerts` have the group of each."""
    series = [
        {"series": one["series"], "values": " ".join(samples(str(one["values"])))}
        for one in test.get("input_series", ())
    ]
    return {
        "name": test.get("name", ""),
        "interval": test.get("interval", every),
        "input_series": series,
        "alert_rule_test": [alert(one, alerts) for one in test.get("alert_rule_test", ())],
        "metricsql_expr_test": [query(one) for one in test.get("promql_expr_test", ())],
    }


def query(given: Json) -> Json:
    """Return one assertion about a query, without the labels that only the tool gives; a name may be expected."""
    expected = given.get("exp_samples") or []
    named = any(not one.get("labels", "{").startswith("{") or "__name__" in one["labels"] for one in expected)
    gone = '"alertgroup"' if named else '"alertgroup", "__name__"'
    return {**given, "expr": f"label_del({given['expr']}, {gone})", "exp_samples": expected}


def alert(given: Json, alerts: Mapping[str, str]) -> Json:
    """Return one assertion about an alert, all labels and annotations as texts."""
    expected = [
        {
            "exp_labels": texts(one.get("exp_labels") or {}),
            "exp_annotations": texts(one.get("exp_annotations") or {}),
        }
        for one in given.get("exp_alerts") or ()
    ]
    name = given["alertname"]
    return {"eval_time": given["eval_time"], "groupname": alerts[name], "alertname": name, "exp_alerts": expected}


def texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts."""
    return {key: str(value) for key, value in given.items()}


def samples(values: str) -> Iterator[str]:
    """Yield the samples of promtool's short form, one by one."""
    for item in values.split():
        found = ITEM.fullmatch(item)
        assert found, item
        times = int(found["times"] or 0)
        if found["first"] in ("_", "stale"):
            yield from [found["first"]] * (times or 1)
            continue
        first, step = float(found["first"]), float(found["step"] or 0)
        yield from (number(first + step * count) for count in range(times + 1))


def number(value: float) -> str:
    """Return a number without an exponent; NaN is a missing sample."""
    if math.isnan(value):
        return "_"
    return format(Decimal(repr(value)), "f").removesuffix(".0")
