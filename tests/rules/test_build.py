"""The rules that are committed are those their sources make; and what a mistake in a source is answered with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from prometheus import build
from tachograph.bundle import rules

ROOT = Path(__file__).resolve().parents[2]
NOT_RENDERED = {"dcgm.yml"}
"""Made by tools/pages from the catalog."""


def source(folder: Path, text: str) -> Path:
    path = folder / "subject.yml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_rules_are_what_their_sources_make() -> None:
    """`make rules` was run after the last change; no rule file is without a source."""
    for path in rules.sources():
        made = rules.rendered(path, rules.parameters())
        assert made == (ROOT / "prometheus/rules" / path.name).read_text(encoding="utf-8"), f"{path.name}: make rules"
    written = {path.name for path in ROOT.glob("prometheus/rules/*.yml")}
    assert written == {path.name for path in rules.sources()} | NOT_RENDERED


def test_a_source_is_yaml() -> None:
    """An editor understands it, with a name where a text will stand."""
    for path in rules.sources():
        assert yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"], path


def test_every_macro_and_parameter_is_used() -> None:
    """By a source, or by another macro."""
    texts = [path.read_text(encoding="utf-8") for path in (*rules.sources(), ROOT / "prometheus/macros.yml")]
    used = set(re.findall(r"\$\((\w+)", "\n".join(texts)))
    assert rules.macros().keys() | rules.parameters().keys() <= used


def test_the_dashboards_look_for_the_same_jobs() -> None:
    """The table of nodes finds node_exporter where the rules find it."""
    text = (ROOT / "grafana/dashboards/monitoring.json").read_text(encoding="utf-8")
    jobs = {rules.parameters()[f"{name}_job"] for name in ("exporter", "node")}
    assert jobs <= set(re.findall(r'job=~\\"([^"]+)\\"', text))


def test_texts_are_indented_like_their_line(tmp_path: Path) -> None:
    """A macro of several lines is indented as the line that it stands in."""
    path = source(tmp_path, "rules:\n  - record: a\n    expr: |\n      $(unshown_limits)\n")
    (found,) = yaml.safe_load(rules.rendered(path, rules.parameters()))["rules"]
    first, *_, last = found["expr"].splitlines()
    assert first.startswith("label_replace(15 + 0 * max by (run) (")
    assert last.startswith("label_replace(0.2 + 0 * max by (run) (")


def test_a_rule_knows_its_name(tmp_path: Path) -> None:
    """Of the alert or the series nearest above."""
    path = source(tmp_path, "- record: run:a:max\n  expr: $(rate 5m; $(rule))\n- alert: Odd\n  at: $(runbook)\n")
    assert yaml.safe_load(rules.rendered(path, {"runbook_url": "http://book"})) == [
        {"record": "run:a:max", "expr": "(rate(run:a:max[5m]) or rate(run:a:max[5m]))"},
        {"alert": "Odd", "at": "http://book/Odd.md"},
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$(no_endedd)", "there is no macro or parameter `no_endedd`"),
        ("$()", "there is no macro or parameter ``"),
        ("$(rate x)", "`rate` takes window; counter, and is given x"),
        ("$(tier x)", "`tier` takes no argument, and is given x"),
        ("$(limit x; (2)", "`$(limit x; (2)` is not closed on its line"),
        ("$(runbook)", "there is no macro or parameter `runbook_url`"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    """All of a file at once."""
    path = source(tmp_path, f"# fine\n- alert: A\n  expr: {text}\n\n  for: {text}\n")
    with pytest.raises(rules.RuleSourceError) as caught:
        rules.rendered(path, {})
    assert str(caught.value).splitlines() == [f"{path}:{line}: {words}" for line in (3, 5)]


def test_a_macro_within_itself_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no endless rendering."""
    monkeypatch.setattr(rules, "macros", lambda: {"a": rules.Macro((), "$(b)"), "b": rules.Macro((), "$(a)")})
    with pytest.raises(rules.RuleSourceError, match="`a`"):
        rules.rendered(source(tmp_path, "$(a)\n"), {})


def test_rules_for_a_site_of_ones_own(tmp_path: Path) -> None:
    """Addresses and names of jobs are flags; the rules that are committed stay as they are."""
    before = {path.name: path.read_bytes() for path in ROOT.glob("prometheus/rules/*.yml")}
    flags = ["--grafana-url", "https://g.example/", "--runbook-url", "https://b.example", "--node-job", "hosts"]
    command = [sys.executable, ROOT / "prometheus/build.py", *flags, "--output", tmp_path / "rules"]
    subprocess.run(command, check=True, timeout=60)
    text = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "rules").glob("*.yml"))
    assert "https://g.example/d/tachograph-run?" in text
    assert "https://b.example/RankDead.md" in text
    assert 'up{job=~"hosts"}' in text
    assert not re.search(r"localhost|github\.com|node-exporter\b", re.sub(r"(?m)^ *#.*", "", text))
    assert {path.name: path.read_bytes() for path in ROOT.glob("prometheus/rules/*.yml")} == before


@pytest.mark.parametrize("value", ["http://a b", 'http://"', "node{", ""])
def test_a_parameter_that_would_break_the_rules_is_refused(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands in labels, expressions and templates."""
    with pytest.raises(SystemExit):
        build.main(["--grafana-url", value, "--output", str(tmp_path)])
    assert "--grafana-url" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
