"""The files that a bundle holds: the committed ones unless a flag says otherwise, each accepted by its program."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from tachograph.bundle import command, folder
from tachograph.findings.limits import LIMITS
from tachograph.node.config import read_config
from tachograph.text import duration

pytestmark = pytest.mark.usefixtures("wide")

ROOT = Path(__file__).resolve().parents[2]
Write = Callable[..., Path]
COMMITTED = {
    "rules": "prometheus/rules",
    "targets": "prometheus/targets",
    "alertmanager/templates": "alertmanager/templates",
    "dashboards": "grafana/dashboards",
}
COUNTED = re.compile(r"count_over_time\((\w+:[\w:]+)(?:{[^}]*})?\[(\w+)\][^)]*\)\s*>=? (\d+)")
"""A number of samples that a rule wants of a recorded series: its name, the window, how many."""

SITE = ["--node-job", "hosts", "--runbook-url", "https://b.example/", "--grafana-url", "https://g.example"]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def accepted(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_flags_the_files_are_the_committed_ones(write: Write) -> None:
    """Byte by byte, and none is missing."""
    out = write()
    for there, here in COMMITTED.items():
        assert files(out / there) == files(ROOT / here)
    for name in ("prometheus/prometheus.yml", "alertmanager/alertmanager.yml"):
        assert (out / name.removeprefix("prometheus/")).read_bytes() == (ROOT / name).read_bytes()


def test_no_link_of_a_runbook_is_dead(write: Write) -> None:
    """They are the committed ones, except that documents, which a bundle lacks, are those of the repository."""
    out = write() / "runbooks"
    made, committed = files(out), files(ROOT / "runbooks")
    assert made.keys() == {name for name in committed if name.endswith(".md")}
    repository = "https://github.com/tachograph/tachograph/blob/main/"
    linked = set()
    for name, content in made.items():
        text = content.decode()
        assert text.replace(f"]({repository}", "](../").encode() == committed[name]
        links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
        assert not [link for link in links if link and "://" not in link and not (out / link).exists()], name
        linked |= {link.removeprefix(repository) for link in links if link.startswith(repository)}
    assert linked
    assert not [path for path in linked if not (ROOT / path).exists()]


def test_no_rule_is_evaluated_more_often_than_targets_are_scraped(write: Write) -> None:
    """With --scrape-interval; a group that is evaluated more rarely stays so, and nothing else differs."""
    out = write("--scrape-interval", "15s")
    intervals = {}
    for path in (out / "rules").glob("*.yml"):
        shipped = yaml.load((ROOT / "prometheus/rules" / path.name).read_text(encoding="utf-8"), yaml.CSafeLoader)
        made = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        for before, after in zip(shipped["groups"], made["groups"], strict=True):
            intervals[before["interval"], after["interval"]] = before["name"]
            assert {**before, "interval": after["interval"]} == after
    assert {("2s", "15s"), ("5s", "15s"), ("10s", "15s"), ("1m", "1m")} <= intervals.keys()
    assert all(after in (before, "15s") for before, after in intervals)
    settings = yaml.load((out / "prometheus.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)["global"]
    assert settings == {"scrape_interval": "15s", "scrape_timeout": "4s", "evaluation_interval": "15s"}


def test_rules_that_count_samples_can_have_as_many_at_the_longest_interval(write: Write) -> None:
    """A window over a recorded series holds as many samples as its group is evaluated in it."""
    out = write("--scrape-interval", "30s")
    rules = [
        (group, rule)
        for path in (out / "rules").glob("*.yml")
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
    ]
    every = {rule["record"]: duration.parse(group["interval"]) for group, rule in rules if "record" in rule}
    counted = [
        (series, duration.parse(window) / every[series], int(least))
        for _, rule in rules
        for series, window, least in COUNTED.findall(rule["expr"])
        if series in every
    ]
    assert counted
    assert [one for one in counted if one[1] < one[2]] == []


NAMED = re.compile(r"(?<![\w:])node_[a-z]\w+(?![\w:])")
"""A name of node_exporter's, in an expression or a text."""


def test_few_host_series_are_those_that_something_reads(programs: Mapping[str, Path], write: Write) -> None:
    """Rules, texts, dashboards and `doctor`; what preflight writes for node_exporter, too, and nothing else."""
    out = write("--host-series", "few", "--node-job", "hosts")
    jobs = yaml.load((out / "prometheus.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)["scrape_configs"]
    relabelled = {job["job_name"]: job["metric_relabel_configs"] for job in jobs if "metric_relabel_configs" in job}
    assert relabelled.keys() == {"hosts"}
    (kept,) = relabelled["hosts"]
    assert (kept["action"], kept["source_labels"]) == ("keep", ["__name__"])
    stored = re.compile(kept["regex"])
    texts = [path for pattern in ("rules/*.yml", "dashboards/*.json") for path in out.glob(pattern)]
    read = {name for path in texts for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    doctor = (ROOT / "exporter/tachograph/doctor/prometheus_checks.py").read_text(encoding="utf-8")
    read |= {name for text in re.findall(r'"[^"\n]*"', doctor) for name in NAMED.findall(text)}
    read -= {"node_exporter", "node_exporters", "node_job", "node_reboot"}
    assert {"node_network_receive_bytes_total", "node_exporter_build_info", "node_filesystem_avail_bytes"} <= read
    assert [name for name in sorted(read) if not stored.fullmatch(name)] == []
    assert stored.fullmatch("tachograph_preflight_up")
    for name in (
        "go_goroutines",
        "node_network_mtu_bytes",
        "node_network_receive_bytes_total_total",
        "node_network_up",
        "promhttp_metric_handler_requests",
    ):
        assert not stored.fullmatch(name)
    accepted(programs["promtool"], "check", "config", "--syntax-only", out / "prometheus.yml")


@pytest.mark.parametrize(
    ("flags", "job"), [([], "node"), (SITE, "hosts"), (["--node-job", "a-1|b"], "a-1"), (["--node-job", "a.+"], "node")]
)
def test_prometheus_accepts_rules_and_configuration(
    programs: Mapping[str, Path], write: Write, flags: list[str], job: str
) -> None:
    """As shipped, and with a site's own names; a pattern is no name of a job."""
    out = write(*flags)
    accepted(programs["promtool"], "check", "rules", *(out / "rules").glob("*.yml"))
    accepted(programs["promtool"], "check", "config", out / "prometheus.yml")
    jobs = [
        one["job_name"]
        for one in yaml.load((out / "prometheus.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)["scrape_configs"]
    ]
    assert jobs == ["tachograph", job, "dcgm", "engines", "prometheus", "alertmanager"]


def test_flags_reach_rules_and_dashboards(write: Write) -> None:
    """Addresses and the job of node_exporter; a dashboard stays JSON."""
    out = write(*SITE)
    rules = "".join(path.read_text(encoding="utf-8") for path in (out / "rules").glob("*.yml"))
    boards = "".join(path.read_text(encoding="utf-8") for path in (out / "dashboards").glob("*.json"))
    assert 'up{job=~"hosts"}' in rules
    assert "https://g.example/d/tachograph-run?" in rules
    for text in (rules, boards):
        assert "https://b.example/" in text
        assert "node|node-exporter" not in text
    assert r"job=~\"hosts\"" in boards
    assert "github.com/tachograph" not in boards
    for path in (out / "dashboards").glob("*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["uid"].startswith("tachograph-")


def test_limits_reach_the_exporters_and_the_rules(programs: Mapping[str, Path], write: Write, tmp_path: Path) -> None:
    """Exporters apply the file that is written for them; rules have the same for exporters that show no limits."""
    (tmp_path / "limits.yml").write_text("hang_seconds: 45\ndata_stall_ratio: 0.35\n", encoding="utf-8")
    out = write("--limits", str(tmp_path / "limits.yml"))
    files = sorted((out / "rules").glob("*.yml"))
    accepted(programs["promtool"], "check", "rules", *files)
    limit = re.compile(r'label_replace\(([\d.]+) \+ 0 .*, "name", "(\w+)", "", ""\)')
    found = {pair for path in files for pair in limit.findall(path.read_text(encoding="utf-8"))}
    assert found == {
        ("45", "hang_seconds"),
        ("0.2", "straggler_ratio"),
        ("0.15", "throughput_drop_ratio"),
        ("0.35", "data_stall_ratio"),
    }
    config = read_config([f"--config={out / 'exporter.yml'}"], {})
    assert config.site_limits == {"hang_seconds": 45, "data_stall_ratio": 0.35}


@pytest.mark.parametrize("kind", ["prometheus", "operator", "configmap"])
def test_the_exporters_file_is_valid_without_limits(write: Write, kind: str) -> None:
    """It explains every limit, and sets none; in Kubernetes it is the only key of a ConfigMap."""
    out = write("--format", kind)
    text = (out / "exporter.yml").read_text(encoding="utf-8")
    if kind != "prometheus":
        text = yaml.safe_load(text)["data"]["exporter.yml"]
        (out / "exporter.yml").write_text(text, encoding="utf-8")
    assert all(limit.meaning in text and limit.expected in text for limit in LIMITS.values())
    assert read_config([f"--config={out / 'exporter.yml'}"], {}).site_limits == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hang_second: 45\n", "there is no limit `hang_second`; did you mean hang_seconds?"),
        ("x: 1\n", "there is no limit `x`; expected one of hang_seconds, straggler_ratio, "),
        ("hang_seconds: 10m\n", "`hang_seconds` must be a number of seconds from 10 to 86400, not '10m'"),
        ("hang_seconds: true\n", "`hang_seconds` must be a number of seconds from 10 to 86400, not True"),
        ("hang_seconds: .nan\n", "`hang_seconds` must be a number of seconds from 10 to 86400, not nan"),
        ("hang_seconds: 5\n", "`hang_seconds` must be a number of seconds from 10 to 86400, not 5"),
        ("straggler_ratio: 20\n", "`straggler_ratio` must be a share (0.2 for 20 %) from 0.06 to 0.95, not 20"),
        ("- 3\n", "expected lines such as `hang_seconds: 30`"),
        ("a: [\n", "not YAML: "),
    ],
)
def test_a_faulty_limit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    """With its file and what was expected; nothing is written."""
    path = tmp_path / "limits.yml"
    path.write_text(text, encoding="utf-8")
    assert command.main(["--out", str(tmp_path / "out"), "--limits", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"tachograph bundle: {path}: {said}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--node-job", "a(b"], "--node-job: 'a(b' is not a regular expression: "),
        (["--grafana-url", "http://a b"], "--grafana-url: 'http://a b' is empty, or has a space"),
        (["--node-job", ""], "--node-job: '' is empty"),
        (["--scrape-interval", "15"], "--scrape-interval: '15' is not a duration"),
        (["--scrape-interval", "2s"], "--scrape-interval: '2s' is not a number of whole seconds from 5s to 30s"),
        (["--scrape-interval", "1m"], "--scrape-interval: '1m' is not a number of whole seconds from 5s to 30s"),
        (["--host-series", "few", "--format", "operator"], "--host-series few goes with --format prometheus: "),
        (["--thresholds", "/nonexistent"], "/nonexistent: No such file or directory"),
    ],
)
def test_a_faulty_flag_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    """In one line; nothing is written."""
    assert command.main(["--out", str(tmp_path / "out"), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"tachograph bundle: {said}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless --force is given, which keeps what else is there; a file is no folder."""
    kept = tmp_path / "mine.yml"
    kept.touch()
    assert command.main(["--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [kept]
    assert command.main(["--out", str(kept), "--force"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert command.main(["--out", str(tmp_path), "--force"]) == 0
    assert kept.exists()
    assert (tmp_path / "rules/runs.yml").exists()


def test_a_bundle_replaces_an_earlier_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that the new bundle lacks are removed, but only those that were part of the earlier one."""
    out = tmp_path / "out"
    assert command.main(["--out", str(out), "--format", "operator"]) == 0
    kept = [out / "rules/mine.yml", tmp_path / "outside.yml"]
    for path in kept:
        path.touch()
    with (out / folder.WRITTEN).open("a", encoding="utf-8") as file:
        file.write("../outside.yml\n")
    assert command.main(["--out", str(out), "--force"]) == 0
    assert all(path.exists() for path in kept)
    assert not (out / "podmonitor.yml").exists()
    assert not list((out / "dashboards").glob("*.yml"))
    capsys.readouterr()


def test_the_nodes_of_a_site_and_its_edits_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """targets/ is a site's own from the first bundle on; an edited file is kept in a copy, and said."""
    out = tmp_path / "out"
    assert command.main(["--out", str(out), "--receiver", "slack"]) == 0
    (out / "targets/tachograph.yml").write_text("- targets: [node-1:10024]\n", encoding="utf-8")
    edited = (out / "alertmanager/alertmanager.yml").read_text(encoding="utf-8").replace("#training-dev", "#ours")
    (out / "alertmanager/alertmanager.yml").write_text(edited, encoding="utf-8")
    capsys.readouterr()
    assert command.main(["--out", str(out), "--receiver", "email", "--force"]) == 0
    assert (out / "targets/tachograph.yml").read_text(encoding="utf-8") == "- targets: [node-1:10024]\n"
    assert (out / "alertmanager/alertmanager.yml.yours").read_text(encoding="utf-8") == edited
    said = capsys.readouterr().out.splitlines()
    assert said[-1].startswith(f"{out}/alertmanager/alertmanager.yml had been edited: that is now alertmanager/alert")
    assert [line for line in said if "edited" in line] == said[-1:]
    assert command.main(["--out", str(out), "--format", "operator", "--force"]) == 0
    assert (out / "targets/tachograph.yml").exists()
    assert not (out / "alertmanager/alertmanager.yml").exists()
    assert (out / "alertmanager/alertmanager.yml.yours").exists()


def test_a_diff_says_what_would_change_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `diff --unified`, with its status: 1 for a difference; a site's own files are none."""
    out = tmp_path / "out"
    assert command.main(["--out", str(out), "--diff"]) == 1
    assert not out.exists()
    assert command.main(["--out", str(out)]) == 0
    (out / "targets/node.yml").write_text("- targets: [node-1:9100]\n", encoding="utf-8")
    capsys.readouterr()
    assert command.main(["--out", str(out), "--diff"]) == 0
    assert capsys.readouterr().out == ""
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert command.main(["--out", str(out), "--diff", "--node-job", "hosts"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "--- prometheus.yml" in lines
    assert "+  - job_name: hosts" in lines
    assert not any("targets/" in line for line in lines if line.startswith(("---", "+++")))
    assert command.main(["--out", str(out), "--diff", "--format", "configmap"]) == 1
    assert "--- rules/runs.yml" in (lines := capsys.readouterr().out.splitlines())
    assert lines[lines.index("--- rules/runs.yml") + 1] == "+++ /dev/null"
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert command.main(["--check", "x.yml", "--diff"]) == 2


def test_what_was_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, the files that are still to be created, and the next command last."""
    assert command.main(["--out", str(tmp_path / "out"), "--receiver", "slack"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0].rpartition("/")[2] for line in lines] == [
        "prometheus.yml", "rules", "alertmanager", "dashboards", "runbooks", "receivers", "next",
    ]  # fmt: skip
    assert "create /etc/alertmanager/secrets/slack-webhook-url," in lines[5]


@pytest.mark.parametrize("kind", ["prometheus", "operator", "configmap"])
def test_what_is_said_fits_a_terminal(tmp_path: Path, fits: Callable[..., None], kind: str) -> None:
    """But for the commands to run next."""
    flags = ["--format", kind, "--receiver", "pagerduty", "--receiver", "discord", "--force"]
    fits(lambda: command.main(["--out", str(tmp_path / "bundle"), *flags]), "next: ")
