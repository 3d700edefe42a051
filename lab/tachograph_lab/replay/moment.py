"""A scenario at some moments: what Prometheus with the shipped rules answers to instant queries then, in one replay."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tachograph.processes.die_with_parent import dying_with_parent
from tachograph.servers.prometheus_api import TimeSeries
from tachograph.text import duration
from tachograph_lab.replay import promtool_limit
from tachograph_lab.replay.evaluation import EvaluationError, PromtoolTest, milliseconds, roomy
from tachograph_lab.replay.promtool_output import label_set, unquoted
from tachograph_lab.replay.recording import record
from tachograph_lab.replay.shipped_rules import shipped
from tachograph_lab.replay.virtual import KnownSince, interval, outages
from tachograph_lab.scenario import Scenario

_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ASKED = re.compile(r'expr: ("(?:[^"\\]|\\.)*"), time: (\S+),')
_SAMPLE = re.compile(r'(?P<labels>\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}) (?P<value>[^\s,]+)')


def answers(
    scenario: Scenario, at: float, expressions: Iterable[str], suite: str = "bookworm"
) -> Mapping[str, list[TimeSeries]]:
    """Return the vector of each expression at second `at` of a scenario, which is Unix time `at`.

    Raises EvaluationError for an expression or a rule that fails, and BinariesUnavailable.
    """
    return answers_at(scenario, [at], expressions, suite)[at]


def answers_at(
    scenario: Scenario, moments: Sequence[float], expressions: Iterable[str], suite: str = "bookworm"
) -> Mapping[float, Mapping[str, list[TimeSeries]]]:
    """Return the same for several moments, between none of which Prometheus restarts; raise what `answers` raises."""
    asked, rules = list(dict.fromkeys(expressions)), shipped()
    kept = rules.words | {word for each in asked for word in _WORD.findall(each)}
    last = max(moments)
    recording = record(replace(scenario, lasts=last), kept)
    if known := [start for _, start in outages(scenario) if start < last]:
        recording = KnownSince(recording, known[-1], last)
    with tempfile.TemporaryDirectory(prefix="tachograph-moment-") as folder:
        path = Path(folder) / "test.yml"
        questions = ({"expr": one, "eval_time": milliseconds(at)} for at in moments for one in asked)
        with path.open("w", encoding="utf-8") as file:
            PromtoolTest(recording, rules, interval(scenario), "promql_expr_test", questions).write(file)
        done = subprocess.run(
            dying_with_parent([str(promtool_limit.raised(suite)), "test", "rules", str(path)]),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=roomy(path.stat().st_size),
        )  # fmt: skip
    found = read(done.stdout)
    return {at: {one: found.get((round(1000 * at), one), []) for one in asked} for at in moments}


def read(output: str) -> dict[tuple[int, str], list[TimeSeries]]:
    """Return what promtool found for expressions of which a test expects nothing, by milliseconds and expression.

    Raises EvaluationError.
    """
    found: dict[tuple[int, str], list[TimeSeries]] = {}
    expression, at, errors = "", 0.0, []
    for line in output.splitlines():
        text = line.strip()
        if asked := _ASKED.fullmatch(text):
            expression, at = unquoted(asked[1][1:-1]), duration.parse(asked[2])
        elif text.startswith("got:") and expression:
            found[round(1000 * at), expression] = [
                TimeSeries(label_set(one["labels"]), ((at, float(one["value"])),)) for one in _SAMPLE.finditer(text[4:])
            ]
        elif not re.fullmatch(r"(|Unit Testing:.*|FAILED:|SUCCESS|exp:\s*nil,?)", text):
            errors.append(text)
    if errors:
        raise EvaluationError(errors)
    return found
