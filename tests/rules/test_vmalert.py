"""The rule tests under `vmalert-tool unittest`, VictoriaMetrics' own: each holds, or differs for a known reason."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tachograph_lab import binaries
from tests.rules.conftest import apart, rules_of
from tests.rules.vmalert_form import samples, written
from tools.mutation.trial import read

HERE = Path(__file__).parent
FILES = sorted([*HERE.glob("*.yml"), *HERE.glob("*/*.yml")])

DIFFERS: Mapping[str, tuple[str, ...]] = {
    "what has ended, or changed its labels, is found for longer: the tool writes no end of what it records": (
        "LossNotFinite 0", "LossSpikeNotRecovering 0", "RunHung/roles 7", "checkpoints/behaviour 0",
        "collectives/CollectiveSlow 1", "efficiency/MfuDropped 0", "engines/behaviour 0", "exporter/rollout 1",
        "exporter/rollout 2", "gpu/behaviour 0", "gpu_faults/left_and_taken_again 0",
    ),
    "changes() and increase() count the first sample of a series": (
        "checkpoints/behaviour 2", "history/any_interval 0", "history/behaviour 0", "meta/behaviour 1",
        "meta/behaviour 2",
    ),
    "NaN is not stored": ("ValidationLossSpike 0",),
    "twelve digits are stored": ("gpu/clock_below_peers 1",),
    "a window begins a sample later": ("RunHung/behaviour 11", "checkpoints/long_windows 0"),
    "a text's query finds nothing, and it is not known why": (
        "LossDiverging/slow_steps 0", "exporter/cut_off 0", "supervisor/behaviour 4",
    ),
}  # fmt: skip
"""Reason -> the scenarios that differ for it: a file, and which of its tests."""


@pytest.fixture(scope="module")
def tool() -> Path:
    """Return vmalert-tool, which comes with `make victoria`."""
    try:
        path = binaries.find_victoria()["vmalert"]
    except binaries.BinariesUnavailable as error:
        pytest.skip(str(error))
    path = path.with_name(path.name.replace("vmalert", "vmalert-tool"))
    if not path.exists():
        pytest.skip(f"{path} is not there: it comes with VictoriaMetrics 1.112 and later")
    return path


def name_of(path: Path) -> str:
    """Return how DIFFERS calls a file."""
    return path.relative_to(HERE).with_suffix("").as_posix()


def differing(tool: Path, path: Path, folder: Path) -> dict[str, str]:
    """Return the scenarios of a file that do not hold, each with what the tool says."""
    test = read(path)
    loaded = {Path(file).stem: rules_of((path.parent / file).resolve()) for file in test["rule_files"]}
    found = {}
    for number, scenario in enumerate(apart(test, loaded, folder, whole=False)):
        own = folder / f"form-{number}"
        own.mkdir()
        done = subprocess.run(
            [tool, "unittest", "--files", written(scenario, own)],
            cwd=own, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode:
            found[f"{name_of(path)} {number}"] = done.stdout + done.stderr
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_rules_behave_as_in_prometheus(tool: Path, path: Path, tmp_path: Path) -> None:
    """Every scenario of the file holds, but for those that are known to differ, and these do."""
    known = {one for listed in DIFFERS.values() for one in listed if one.rpartition(" ")[0] == name_of(path)}
    found = differing(tool, path, tmp_path)
    assert found.keys() == known, "\n".join(found.values())[-8000:]


def test_every_scenario_that_differs_exists() -> None:
    """And is listed once."""
    every = {f"{name_of(path)} {number}" for path in FILES for number in range(len(read(path)["tests"]))}
    listed = [one for several in DIFFERS.values() for one in several]
    assert len(listed) == len(set(listed))
    assert set(listed) <= every


def test_samples_are_written_out() -> None:
    """Steps, repetitions and exponents, gaps, and NaN, which is a gap."""
    short = "1 2+0.5x2 3-1x1 4x1 5e9 _ _x2 stale NaN -1.5"
    assert " ".join(samples(short)) == "1 2 2.5 3 3 2 4 4 5000000000 _ _ _ stale _ -1.5"


def test_groups_have_one_rule_each(tmp_path: Path) -> None:
    """In the order of their groups, so that each rule sees what the one before has recorded."""
    (tmp_path / "rules.yml").write_text(
        "groups: [{name: a, rules: [{record: x, expr: '1'}, {record: y, expr: x}]},"
        " {name: b, rules: [{record: z, expr: y}]}]"
    )
    test = {
        "rule_files": ["rules.yml"], "group_eval_order": ["b", "a"],
        "tests": [{"promql_expr_test": [{"expr": "x", "eval_time": "1m"}]}],
    }  # fmt: skip
    (tmp_path / "t.yml").write_text(yaml.safe_dump(test))
    (tmp_path / "made").mkdir()
    made = read(written(tmp_path / "t.yml", tmp_path / "made"))
    assert made["group_eval_order"] == ["b#00", "a#00", "a#01"]
    assert made["tests"][0]["metricsql_expr_test"] == [
        {"expr": 'label_del(x, "alertgroup", "__name__")', "eval_time": "1m", "exp_samples": []}
    ]
    groups = read(tmp_path / "made/rules.yml")["groups"]
    assert [group["rules"][0]["record"] for group in groups] == ["x", "y", "z"]
