"""The rules that record our GPU metrics from dcgm-exporter: current, complete, and no trouble where there is none."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.catalog import index as catalog
from tachograph.catalog.index import gpu_metrics
from tachograph.node.gpu.dcgm import twins
from tachograph.node.gpu.reading_table import every_value
from tools.pages.dcgm_rules import rules_page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    """Every rule of the page."""
    (group,) = yaml.load(rules_page(), yaml.CSafeLoader)["groups"]
    return list(group["rules"])


def test_every_twin_is_recorded(recorded: list[dict[str, Any]]) -> None:
    """Each DCGM field of the catalog is recorded once, under our name, with our labels and in our unit."""
    every = [(metric, twin) for metric in gpu_metrics() for twin in metric.dcgm]
    found: dict[str, dict[str, Any]] = {}
    for rule in recorded:
        for _, twin in every:
            if rule["expr"].startswith(f"max by (instance, gpu, uuid) (label_replace({twin.field}{{"):
                assert twin.field not in found
                found[twin.field] = rule
    assert len(found) == len(every) > 30
    for metric, twin in every:
        rule = found[twin.field]
        assert rule["record"] == metric.name
        assert tuple(rule.get("labels", {}).values()) == twin.labels
        assert tuple(rule.get("labels", {})) == metric.labels[2 : 2 + len(twin.labels)]
        conversion = rule["expr"].partition('"UUID", "(.*)"))')[2].partition("\n")[0]
        assert eval(f"{twin.scale!r} {conversion}") == 1, conversion  # so many of theirs are one of ours


def test_only_what_can_be_is_recorded(recorded: list[dict[str, Any]]) -> None:
    """Each field has the range that our own reading of it has, in DCGM's unit; nothing takes a blank for a number."""
    most = {(value.metric.name, value.labels): value.possible.most for value in every_value()}
    rules = {(rule["record"], tuple(rule.get("labels", {}).values())): rule["expr"] for rule in recorded}
    for metric, twin in twins():
        limit = rules[metric.name, twin.labels].partition("<= ")[2].partition(",")[0]
        number, *blanks = limit.split(" != ")
        assert float(number) == pytest.approx(most[metric.name, twin.labels] * twin.scale), twin.field
        for blank in (2147483632, 2147483635, 4294967295, 9223372036854775792):
            assert float(number) < blank or str(blank) in blanks, twin.field


def test_only_what_exists_is_recorded(recorded: list[dict[str, Any]]) -> None:
    """A recorded name is a GPU metric of the catalog, with labels it has; the rest is `node:dcgm_…`."""
    names = {metric.name: metric for metric in gpu_metrics()}
    for rule in recorded:
        if not rule["record"].startswith("node:dcgm_"):
            assert rule.get("labels", {}).keys() <= set(names[rule["record"]].labels)


def test_own_readings_are_told_apart_by_their_job(recorded: list[dict[str, Any]]) -> None:
    """Whatever reads our names in these rules says whose it means: else a rule would feed on itself."""
    for rule in recorded:
        for part in rule["expr"].split("tachograph_gpu_")[1:]:
            assert part.partition("{")[2].startswith(('job=""}', 'job!=""}')), f"{rule['record']}: {part[:40]}"


@pytest.mark.parametrize("targets", ["missing", "empty", "given"])
def test_the_job_may_be_without_targets(programs: Mapping[str, Path], tmp_path: Path, targets: str) -> None:
    """prometheus.yml is valid whether targets/dcgm.yml is away, as shipped, or names dcgm-exporters."""
    shutil.copytree(ROOT / "prometheus", tmp_path / "p")
    file = tmp_path / "p/targets/dcgm.yml"
    if targets == "missing":
        file.unlink()
    elif targets == "given":
        file.write_text(file.read_text().replace("# - targets", "- targets").replace("[]\n", ""))
        assert yaml.load(file.read_text(), yaml.CSafeLoader) == [{"targets": ["node-1:9400"]}]
    command = [programs["promtool"], "check", "config", tmp_path / "p/prometheus.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_job_keeps_the_workloads_labels() -> None:
    """The dcgm job honours labels, and `instance` is the node as in every other job."""
    jobs = {
        job["job_name"]: job
        for job in yaml.load((ROOT / "prometheus/prometheus.yml").read_text(), yaml.CSafeLoader)["scrape_configs"]
    }
    assert jobs["dcgm"]["honor_labels"] is True
    assert jobs["dcgm"]["relabel_configs"] == jobs["tachograph"]["relabel_configs"]


def test_counters_stay_counters() -> None:
    """A field that DCGM has as a level is none of our counters: rate() over what is recorded must mean something."""
    for metric in gpu_metrics():
        for twin in metric.dcgm:
            assert (metric.kind == catalog.COUNTER) == twin.field.endswith(
                ("_COUNTER", "_CONSUMPTION", "_VIOLATION", "_TOTAL", "_REMAPPED_ROWS", "_SBE", "_DBE")
            ), twin.field
