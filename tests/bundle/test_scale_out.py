"""A bundle for several cells and a level above: the file that names them, its faults, and what is written for each."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.bundle import command, levels, scale_out
from tests.conftest import NEWEST, OLDEST

pytestmark = pytest.mark.usefixtures("wide")

Write = Callable[..., Path]
CELLS = """\
above:
  prometheus: [p0.example:9090, p1.example:9090]
  alertmanager: [a0.example:9093, a1.example:9093]
cells:
  hall-1: {nodes: [n1, n2]}
  hall-2: {nodes: [n3]}
"""


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    path = tmp_path / "cells.yml"
    path.write_text(CELLS, encoding="utf-8")
    return path


def content(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


@pytest.mark.parametrize("programs", [OLDEST, NEWEST], indirect=True)
def test_prometheus_accepts_every_configuration(programs: Mapping[str, Path], write: Write, cells: Path) -> None:
    """With the rules that each names, of which there are some."""
    out = write("--scale-out", str(cells))
    files = [*out.glob("cells/*/prometheus.yml"), *out.glob("above/prometheus-*.yml")]
    assert len(files) == 4
    for path in files:
        done = subprocess.run(
            [programs["promtool"], "check", "config", path], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rules found" in done.stdout


def test_the_replicas_are_one_to_alertmanager(write: Write, cells: Path) -> None:
    """They differ in a label that no alert keeps, and notify every Alertmanager."""
    out = write("--scale-out", str(cells)) / "above"
    replicas = [content(out / f"prometheus-{number}.yml") for number in (0, 1)]
    assert [one["global"].pop("external_labels") for one in replicas] == [{"replica": "0"}, {"replica": "1"}]
    assert replicas[0] == replicas[1]
    assert replicas[0]["alerting"]["alert_relabel_configs"] == [{"regex": "replica", "action": "labeldrop"}]
    assert content(out / "targets/alertmanager.yml") == [{"targets": ["a0.example:9093", "a1.example:9093"]}]
    assert [job["job_name"] for job in replicas[0]["scrape_configs"]] == ["prometheus", "alertmanager"]


def test_a_cell_scrapes_its_nodes_and_notifies_nobody(write: Write, cells: Path) -> None:
    """On both ports, where no other is given; its own Prometheus has the cell's name, or two would be one above."""
    out = write("--scale-out", str(cells)) / "cells"
    for cell, nodes in (("hall-1", ["n1", "n2"]), ("hall-2", ["n3"])):
        settings = content(out / cell / "prometheus.yml")
        assert "alerting" not in settings
        assert [job["job_name"] for job in settings["scrape_configs"]] == [
            "tachograph", "node", "dcgm", "engines", "prometheus",
        ]  # fmt: skip
        targets = {path.stem: content(path) for path in (out / cell / "targets").iterdir()}
        assert targets.pop("prometheus")[0]["labels"] == {"instance": f"prometheus-{cell}"}
        assert targets == {
            "tachograph": [{"targets": [f"{node}:10024" for node in nodes]}],
            "node": [{"targets": [f"{node}:9100" for node in nodes]}],
        }


def test_a_cell_sends_what_is_read_above_to_every_replica(write: Write, cells: Path) -> None:
    """No more than that; what is of the whole cell says which."""
    out = write("--scale-out", str(cells))
    files = {path.name: path.read_text(encoding="utf-8") for path in (out / "above/rules").glob("*.yml")}
    for cell in ("hall-1", "hall-2"):
        there = content(out / f"cells/{cell}/prometheus.yml")["remote_write"]
        assert [one["url"] for one in there] == [f"http://p{number}.example:9090/api/v1/write" for number in (0, 1)]
        for one in there:
            keep, mark = one["write_relabel_configs"]
            sent = keep["regex"].split("|")
            assert sorted(set(sent)) == sent
            assert (keep["action"], keep["source_labels"]) == ("keep", ["__name__"])
            assert {"up", "tachograph_run_ranks", "node:unseen_seconds:max", "cluster:cut_off_nodes:count"} <= set(sent)
            assert not {"tachograph_gpu_ecc_errors_total", "run:progress_age_seconds:min"} & set(sent)
            assert (mark["target_label"], mark["replacement"]) == ("cell", cell)
            marked = re.compile(mark["regex"])
            assert marked.fullmatch("cluster:cut_off_nodes:count;")
            assert marked.fullmatch("up;prometheus")
            assert not [
                name for name in sent if name[:8] != levels.OF_ONE_PROMETHEUS and marked.fullmatch(f"{name};node")
            ]
    recorded = re.findall(r"- record: (cluster:\S+)", "".join(files.values()))
    assert recorded == ["cluster:cut_off_nodes:count"]  # of cells that are away: what they see themselves, they send


def test_ports_are_a_sites_own(write: Write, cells: Path) -> None:
    """One for dcgm-exporter has it scraped, too."""
    cells.write_text(CELLS + "ports: {tachograph: 9, dcgm: 9400}\n", encoding="utf-8")
    out = write("--scale-out", str(cells)) / "cells/hall-2/targets"
    found = {path.stem: content(path)[0]["targets"] for path in out.iterdir()}
    assert found == {"tachograph": ["n3:9"], "node": ["n3:9100"], "dcgm": ["n3:9400"], "prometheus": ["localhost:9090"]}


def test_flags_of_a_bundle_hold_on_both_levels(write: Write, cells: Path) -> None:
    """Intervals, jobs and addresses."""
    out = write(
        "--scale-out", str(cells), "--scrape-interval", "15s", "--node-job", "hosts", "--runbook-url", "https://r.example",
        "--receiver", "email",
    )  # fmt: skip
    for path in (*out.glob("cells/*/prometheus.yml"), *out.glob("above/prometheus-*.yml")):
        assert content(path)["global"]["scrape_interval"] == "15s"
    groups = [group for path in out.glob("*/**/rules/*.yml") for group in content(path)["groups"]]
    assert {int(group["interval"][:-1]) for group in groups if group["interval"].endswith("s")} == {15, 30}
    assert "hosts" in [job["job_name"] for job in content(out / "cells/hall-1/prometheus.yml")["scrape_configs"]]
    for level in ("above", "cells/hall-1"):
        assert 'up{job=~"tachograph|hosts|' in (out / level / "rules/exporter.yml").read_text(encoding="utf-8")
    assert "https://r.example/NodesUnreachable.md" in (out / "above/rules/cells.yml").read_text(encoding="utf-8")
    assert (out / "alertmanager/alertmanager.yml").exists()
    assert not (out / "rules").exists()
    assert not (out / "prometheus.yml").exists()


def test_a_cell_that_goes_is_taken_away(write: Write, cells: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--diff shows it, and --force removes its files; targets follow the file."""
    out = write("--scale-out", str(cells))
    cells.write_text(CELLS.replace("hall-2: {nodes: [n3]}", "hall-3: {nodes: [n3, n4]}"), encoding="utf-8")
    capsys.readouterr()
    arguments = ["--scale-out", str(cells), "--out", str(out)]
    assert command.main([*arguments, "--diff"]) == 1
    assert "+++ cells/hall-3/prometheus.yml" in capsys.readouterr().out
    assert command.main([*arguments, "--force"]) == 0
    assert {path.parent.name for path in out.glob("cells/*/prometheus.yml")} == {"hall-1", "hall-3"}
    assert content(out / "cells/hall-3/targets/node.yml") == [{"targets": ["n3:9100", "n4:9100"]}]


ABOVE = "above: {prometheus: ['p:1'], alertmanager: ['a:1']}\n"
ONE = "cells: {a: {nodes: [n1]}}\n"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["1: expected `above:` and `cells:`, but the file is empty"]),
        ("- a\n", ["1: expected `above:` and `cells:`"]),
        (ABOVE, ["1: `cells:` is missing"]),
        ("\n" + ONE, ["2: `above:` is missing"]),
        ("above: {\n", ["2: not YAML: expected the node content, but found '<stream end>'"]),
        (ABOVE + ONE + "prots: {node: 1}\n", ["3: `prots` is not a key here; did you mean ports?"]),
        (ONE + "above:\n  prometheus: []\n", ["3: `alertmanager:` is missing", "3: expected at least one address"]),
        (
            ONE + "above:\n  prometheus: [p, 'p:0', 'p:65536', 'http://p:1']\n  alertmanager: ['a:1', 'a:1']\n",
            [*(f"3: '{one}' is not an address" for one in ("http://p:1", "p", "p:0", "p:65536")), "4: a:1 is given"],
        ),
        (ABOVE + "cells: {}\n", ["2: expected cells by name"]),
        (ABOVE + "cells: [a]\n", ["2: expected cells by name"]),
        (ABOVE + "cells:\n  a: [n1]\n", ["3: expected `nodes:`"]),
        (ABOVE + "cells:\n  a: {nodes: n1}\n", ["3: expected a list"]),
        (ABOVE + "cells:\n  ../a: {nodes: [n1]}\n", ["3: '../a' is not a cell name"]),
        (ABOVE + "cells:\n  a: {nodes: [n1]}\n  a: {nodes: [n2]}\n", ["4: `a` is given twice"]),
        (ABOVE + "cells:\n  a: {nodes: [n1, {b: 1}]}\n", ["3: '?' is not a node's name"]),
        (ABOVE + "cells:\n  a: {nodes: [n1:10024]}\n", ["3: 'n1:10024' is not a node's name: expected a host without"]),
        (
            ABOVE + "cells:\n  a: {nodes: [n1]}\n  b:\n    nodes:\n      - n2\n      - n1\n",
            ["7: n1 was given in line 3 already, and a node belongs to one cell"],
        ),
        (ABOVE + ONE + "ports: {node: x, nodes: 9100}\n", ["3: `node` must be a port", "3: `nodes` is not a key"]),
        (ABOVE + ONE + "ports: {node: 99999}\n", ["3: `node` must be a port, from 1 to 65535"]),
    ],
)  # fmt: skip
def test_every_fault_is_named_with_its_line(
    text: str, faults: list[str], cells: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, with status 2, by --check and by --out, which then writes nothing."""
    cells.write_text(text, encoding="utf-8")
    out = cells.with_name("out")
    for arguments in (["--check"], ["--out", str(out)]):
        assert command.main(["--scale-out", str(cells), *arguments]) == 2
        lines = capsys.readouterr().err.splitlines()
        for line, fault in zip(lines, faults, strict=True):
            assert line.startswith(f"tachograph bundle: {cells}:{fault}")
    assert not out.exists()


def test_a_file_without_faults_is_right(cells: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a cell may have no nodes yet, or find them itself."""
    assert command.main(["--scale-out", str(cells), "--check"]) == 0
    assert "2 cells with 3 nodes" in capsys.readouterr().out
    cells.write_text(ABOVE + "cells: {a: {nodes: []}}\n", encoding="utf-8")
    assert command.main(["--scale-out", str(cells), "--check"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--check"],
        ["--scale-out", "c.yml"],
        ["--scale-out", "c.yml", "--check", "alertmanager.yml"],
        ["--scale-out", "c.yml", "--check", "--json"],
        ["--scale-out", "c.yml", "--out", "o", "--format", "operator"],
        ["--scale-out", "no-such-file.yml", "--check"],
        ["--scale-out", "no-such-file.yml", "--out", "o"],
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With status 2; nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yml").write_text(CELLS, encoding="utf-8")
    assert command.main(arguments) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["c.yml"]


AWAY = """\
rule_files: [{rules}/cells.yml, {rules}/exporter.yml]
evaluation_interval: 5s
tests:
  # Both cells send for five minutes; then hall-2 is away for five, and back.
  - interval: 5s
    input_series:
      - {{series: 'up{{job="prometheus",instance="prometheus-0.example:9090"}}', values: '1x240'}}
      - {{series: 'up{{job="prometheus",instance="prometheus-hall-1",cell="hall-1"}}', values: '1x240'}}
      - {{series: 'up{{job="prometheus",instance="prometheus-hall-2",cell="hall-2"}}', values: '1x60 _x60 1x120'}}
    promql_expr_test:
      - {{expr: 'count_over_time(cluster:cut_off_nodes:count[6m])', eval_time: 360s}}
      - expr: cluster:cut_off_nodes:count
        eval_time: 400s
        exp_samples: [{{labels: 'cluster:cut_off_nodes:count{{cell="hall-2",reason="away"}}', value: 1}}]
    alert_rule_test:
      - {{eval_time: 420s, alertname: NodesUnreachable}}
      - eval_time: 435s
        alertname: NodesUnreachable
        exp_alerts:
          - exp_labels: {{cell: hall-2, severity: critical, component: tachograph}}
            exp_annotations: &said
              summary: Nothing arrives from cell hall-2.
              description: >-
                For two minutes nothing has arrived from the Prometheus of cell hall-2, which scrapes 1
                node(s). It is down, cut off, or not allowed to write here. The runs there may train on, but
                no rank that hangs or dies there would be named; runs that have nodes in other cells, too, are
                watched there. See whether that Prometheus runs, then its log for remote_write, then what lies
                between.
              runbook_url: https://github.com/tachograph/tachograph/blob/main/runbooks/NodesUnreachable.md
              dashboard_url: http://localhost:3000/d/tachograph-monitoring
      - {{eval_time: 640s, alertname: NodesUnreachable}}
  # All are set up at once, and the first samples of a cell take 20 s.
  - interval: 5s
    input_series:
      - {{series: 'up{{job="prometheus",instance="prometheus-0.example:9090"}}', values: '1x60'}}
      - {{series: 'up{{job="prometheus",instance="prometheus-hall-1",cell="hall-1"}}', values: '_x4 1x60'}}
      - {{series: 'up{{job="prometheus",instance="prometheus-hall-2",cell="hall-2"}}', values: '_x4 1x60'}}
    promql_expr_test:
      - {{expr: 'count_over_time(cluster:cut_off_nodes:count[5m])', eval_time: 280s}}
  # One that has never sent anything is away, too.
  - interval: 5s
    input_series:
      - {{series: 'up{{job="prometheus",instance="prometheus-0.example:9090"}}', values: '1x240'}}
      - {{series: 'up{{job="prometheus",instance="prometheus-hall-2",cell="hall-2"}}', values: '1x60'}}
    promql_expr_test:
      - expr: group by (alertname, cell) (ALERTS{{alertstate="firing"}})
        eval_time: 130s
        exp_samples: [{{labels: '{{alertname="NodesUnreachable",cell="hall-1"}}', value: 1}}]
"""


def test_a_cell_of_which_nothing_arrives_is_paged(programs: Mapping[str, Path], write: Write, cells: Path) -> None:
    """Within two minutes and a half, by its name; a gap of a minute is none."""
    rules = write("--scale-out", str(cells)) / "above/rules"
    test = cells.with_name("away.yml")
    test.write_text(AWAY.format(rules=rules), encoding="utf-8")
    done = subprocess.run(
        [programs["promtool"], "test", "rules", test], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_but_that_of_a_node_are_whole_above(write: Write, cells: Path) -> None:
    """Whatever their panels read is recorded there, sent there, or of the servers there."""
    out = write("--scale-out", str(cells))
    sent = set(
        content(out / "cells/hall-1/prometheus.yml")["remote_write"][0]["write_relabel_configs"][0]["regex"].split("|")
    )
    rules = [
        rule
        for path in (out / "above/rules").glob("*.yml")
        for group in content(path)["groups"]
        for rule in group["rules"]
    ]
    there = sent | {rule["record"] for rule in rules if "record" in rule} | {"ALERTS", "ALERTS_FOR_STATE"}
    boards = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (out / "dashboards").glob("*.json")}
    assert scale_out.OWN_DASHBOARD in boards

    def read(part: object) -> set[str]:
        if isinstance(part, list):
            return set().union(*map(read, part))
        if not isinstance(part, dict):
            return set()
        own = levels.read_by(part["expr"]) if isinstance(part.get("expr"), str) else set()
        return own | read(list(part.values()))

    assert {name for name in boards if read(boards[name]) - there} == {scale_out.OWN_DASHBOARD}
