"""Every text can be rendered, whatever its queries find: `<error expanding template …>` on a page names nobody."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from tachograph.files.shipped import read_yaml

RULES = Path(__file__).resolve().parents[2] / "prometheus/rules"
QUERY = re.compile(r'(?P<piped>\|\s*query\b)|\bquery "(?:[^"\\]|\\.)*"')
LABEL = re.compile(r"\$labels\.(\w+)")
FAILED = "error expanding template"


def texts() -> Iterator[tuple[str, str]]:
    """Yield each annotation and label with its alert and place."""
    for path in sorted(RULES.glob("*.yml")):
        for group in read_yaml(path)["groups"]:
            for rule in group["rules"]:
                for part in ("annotations", "labels"):
                    for name, text in rule.get(part, {}).items() if "alert" in rule else ():
                        yield f"{rule['alert']} ({rule['labels']['severity']}), {name}", text


WORDED = "label_replace(vector(%d), 'w', '1 %%.3g', '', '')"
"""A series with the label that macros give to each number of several: its place and its words."""


def answered(text: str, empty: frozenset[int], series: str = WORDED) -> str:
    """Return a text whose queries all find one series, but for those of these numbers, which find none."""
    numbers = iter(range(len(QUERY.findall(text))))

    def answer(found: re.Match[str]) -> str:
        vector = f"{series} < 0" if next(numbers) in empty else series
        return f'| len | printf "{vector}" | query' if found["piped"] else f'query "{vector % 1}"'

    return QUERY.sub(answer, text)


def versions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the ways in which a text's queries may be answered: all, none, all but one, one alone, and some others."""
    count = len(QUERY.findall(text))
    every, chosen = frozenset(range(count)), Random(count)
    some = [
        frozenset(chosen.sample(range(count), chosen.randrange(count))) for _ in range(4 * count if count > 2 else 0)
    ]
    one = [frozenset({number}) for number in range(count)]
    for empty in dict.fromkeys([frozenset(), every, *one, *(every - each for each in one), *some]):
        yield f"without answers to {sorted(empty)} of {count} queries", answered(text, empty)


def rendered(cases: Mapping[str, str], promtool: Path, folder: Path, value: int = 1) -> dict[str, str]:
    """Return each text as promtool renders it: once for an alert with every label that texts name, once with none."""
    labels = sorted({label for text in cases.values() for label in LABEL.findall(text)})
    none = full = f"vector({value})"
    for label in labels:
        full = f'label_replace({full}, "{label}", "7", "", "")'
    keys = [(case, expr) for case in cases for expr in (none, full)]
    rules = [
        {"alert": f"T{number}", "expr": expr, "annotations": {"text": cases[case]}}
        for number, (case, expr) in enumerate(keys)
    ]
    (folder / "rules.yml").write_text(json.dumps({"groups": [{"name": "texts", "rules": rules}]}), encoding="utf-8")
    wanted = [{"eval_time": "1m", "alertname": f"T{number}", "exp_alerts": []} for number in range(len(keys))]
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [{"alert_rule_test": wanted}]}
    (folder / "test.yml").write_text(json.dumps(test), encoding="utf-8")
    command = [promtool, "test", "rules", folder / "test.yml"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300, check=False)
    found = re.findall(r'alertname: T(\d+),.*?Annotations:\{text="(.*?)"\}\n', done.stdout + done.stderr, re.S)
    return {f"{keys[int(number)][0]}, {'no' if keys[int(number)][1] == none else 'all'} labels": text
            for number, text in found}  # fmt: skip


def test_no_text_can_fail(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """With each of its queries empty, one at a time and all together, with and without labels."""
    cases = {f"{name}, {how}": text for name, given in texts() for how, text in versions(given)}
    shown = rendered(cases, programs["promtool"], tmp_path)
    assert len(shown) == 2 * len(cases) > 1000
    assert [case for case, text in shown.items() if FAILED in text] == []


def test_a_text_that_fails_is_found(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """The first of nothing is an error, and only where a query finds nothing."""
    text = '{{ printf "up{run=%q}" $labels.run | query | first | value }} {{ with query "up" }}here{{ end }}'
    cases = dict(versions(text))
    shown = rendered(cases, programs["promtool"], tmp_path)
    failed = {case.partition("]")[0] for case, text in shown.items() if FAILED in text}
    assert failed == {"without answers to [0", "without answers to [0, 1"}


NO_COUNTS = re.compile(
    r"# s later|# runs have|# batches|, # ten minutes ago|# scrape jobs|# of its # NVLinks|# were up|# of the # GPUs"
    r"|# incidents|# attempts in a row|# times in all|broke # times|one of # there"  # never a thousand
    r"|is #, # on most ranks|from # to #|batch of #|#\.0 (?:times|%)|between #:00 and #:59".replace("#", "12345")
)
"""What is no count of anything, or of little."""


def test_thousands_are_written_in_one_way(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """12,345 and never 12345, whatever a query or the alert's own value is: it stands beside others on a page."""
    found = WORDED.replace("vector(%d)", "vector(%d) * 0 + 12345")
    cases = {name: answered(text, frozenset(), found) for name, text in texts() if not name.endswith("_url")}
    shown = rendered(cases, programs["promtool"], tmp_path, value=12345)
    assert len(shown) == 2 * len(cases)
    left = {case: NO_COUNTS.sub("", text) for case, text in shown.items()}
    assert {case: text for case, text in left.items() if FAILED in text or re.search(r"\d{4}", text)} == {}
