"""promtool's evaluation of a recording is what Prometheus would make of the fleet, in both generations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from tachograph_lab import binaries
from tachograph_lab.replay.alertmanager import Firing
from tachograph_lab.replay.evaluation import EvaluationError, evaluate
from tachograph_lab.replay.recording import Recording
from tachograph_lab.replay.scraped import Row, Target
from tachograph_lab.replay.shipped_rules import ShippedRules, shipped

NASTY = 'say "hi" \\ {a="b"}\nnext – line'

RULES = r"""
groups:
  - name: first
    interval: 1m
    rules:
      - record: seen
        expr: m
      - alert: High
        expr: seen > 0
        labels: {severity: critical, kind: '{{ if eq $labels.who "a" }}special{{ end }}'}
        annotations:
          description: '{{ $labels.who }} is {{ $value }} at http://g [x], {a="b"}'
          cost: ""
      - alert: NotANumber
        expr: m != m
        labels: {severity: warning}
      - alert: Unreachable
        expr: up == 0
        labels: {severity: info}
  - name: last
    rules:
      - alert: TachographWatchdog
        expr: vector(1)
        labels: {severity: none}
"""


@pytest.fixture(scope="module", params=["bookworm", pytest.param("sid", marks=pytest.mark.slow)])
def suite(request: pytest.FixtureRequest) -> str:
    """Return the generation, if it is available."""
    try:
        binaries.find(request.param)
    except binaries.BinariesUnavailable as error:
        if request.param == "bookworm":
            pytest.fail(str(error))
        pytest.skip(str(error))
    return str(request.param)


def rules(folder: Path, text: str) -> ShippedRules:
    """Return rules from a folder laid out as the shipped one."""
    (folder / "rules").mkdir()
    (folder / "rules/a.yml").write_text(text, encoding="utf-8")
    (folder / "prometheus.yml").write_text("rule_files: [rules/*.yml]\n", encoding="utf-8")
    return shipped(folder)


def recorded(pages: Iterable[list[Row] | None], kept: Iterable[str]) -> Recording:
    """Return the recording of a node with this page, scraped every 5 s."""
    target = Target("node", "n1", frozenset(kept))
    pages = list(pages)
    for page in pages:
        target.scrape(page)
    return Recording([target], 5.0, 5.0 * (len(pages) - 1))


def m(value: float, who: str = "a") -> Row:
    return ("m", {"who": who}, value)


def spoken(firings: list[Firing]) -> list[tuple[str, str, float, float | None]]:
    return [(one.alert, one.labels.get("who", ""), one.start, one.end) for one in firings]


def test_alerts_have_their_times_labels_and_words(suite: str, tmp_path: Path) -> None:
    """Labels that expand to nothing are absent; quotes, line feeds and braces are kept; the watchdog is left out."""
    low, high = [m(0), m(1, NASTY)], [m(2.5), m(0, NASTY)]
    found = evaluate(recorded([low, low, high, high], {"m", "up"}), rules(tmp_path, RULES), 5.0, suite)
    assert spoken(found) == [("High", NASTY, 0.0, 10.0), ("High", "a", 10.0, None)]
    nasty, plain = found
    assert nasty.annotations == {"cost": "", "description": f'{NASTY} is 1 at http://g [x], {{a="b"}}'}
    assert plain.labels == {"alertname": "High", "severity": "critical", "kind": "special", "who": "a",
                            "job": "node", "instance": "n1"}  # fmt: skip
    assert "kind" not in nasty.labels


def test_gone_unreachable_and_not_a_number_are_three_things(suite: str, tmp_path: Path) -> None:
    """A series that leaves its page, or whose scrape fails, ends at that scrape; it may come back; NaN is a value."""
    pages: list[list[Row] | None] = [[m(1)], [m(1)], [], [], [m(math.inf)], None, [m(math.nan)], [m(math.nan)], [m(-1)]]
    found = evaluate(recorded(pages, {"m", "up"}), rules(tmp_path, RULES), 5.0, suite)
    assert spoken(found) == [
        ("High", "a", 0.0, 10.0),
        ("High", "a", 20.0, 25.0),
        ("Unreachable", "", 25.0, 30.0),
        ("NotANumber", "a", 30.0, 40.0),
    ]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("{record: twice, expr: 'm + on (job) m'}", "many-to-many"),
        (
            "{alert: Bad, expr: m > 0, labels: {severity: info}, annotations: {a: '{{ $labels.who.x }}'}}",
            "expanding template",
        ),
    ],
)
def test_a_rule_that_fails_is_an_error(suite: str, tmp_path: Path, rule: str, words: str) -> None:
    """A verdict must not rest on a rule that was silent because it failed."""
    broken = rules(tmp_path, f"groups: [{{name: g, rules: [{rule}]}}]")
    with pytest.raises(EvaluationError, match=words):
        evaluate(recorded([[m(1), m(1, "b")]], {"m"}), broken, 5.0, suite)


def test_more_samples_than_promtool_allows(suite: str, tmp_path: Path) -> None:
    """A query over 12,000 series is evaluated."""
    wide = "groups: [{name: g, rules: [{alert: All, expr: count(m) > 11999, labels: {severity: info}}]}]"
    page = [m(1, str(i)) for i in range(12_000)]
    assert spoken(evaluate(recorded([page], {"m"}), rules(tmp_path, wide), 5.0, suite)) == [("All", "", 0.0, None)]


def test_the_shipped_rules_are_read_whole() -> None:
    """Every file, group and alert; the metrics of expressions and of texts are all read."""
    read = shipped()
    assert {"RunHung", "RankDead"} <= set(read.alerts)
    assert "TachographWatchdog" not in read.alerts
    assert "tachograph-progress" in read.groups
    assert {"up", "tachograph_rank_up", "tachograph_train_step", "run:over_limit_seconds:min"} <= read.words
