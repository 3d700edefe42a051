"""docs/reference.md and deploy/exporter.yml say what the code does; that they are up to date is tests/tools's."""

from __future__ import annotations

import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import yaml

from tachograph.__main__ import COMMANDS
from tachograph.node.config import read_config
from tools.pages.reference import sample_file
from tools.pages.variables import VARIABLES

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"\bTACHOGRAPH_[A-Z_]+\b|\b(?:PROMETHEUS|ALERTMANAGER)_URL\b|\bNODE_NAME\b(?!')")


def test_every_variable_has_its_row() -> None:
    """Each variable of ours that the code or a hook reads is in the table, and each one there is read."""
    listed = ["git", "ls-files", "exporter/tachograph/*.py", "deploy/slurm", "exporter/tachograph/*.c"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    text = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in files)
    known = {one.name for one in VARIABLES}
    assert set(OURS.findall(text)) == {name for name in known if OURS.fullmatch(name)}
    assert [name for name in known if not re.search(rf"\b{name}\b", text)] == ["NO_COLOR"], "Textual and rich read this"


def test_every_exit_status_is_documented() -> None:
    """Of each command, and of each below it: at least that it did what was asked, and wrong arguments."""
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:`([a-z ]+)`)? \| (?:(\d+) )?\| .", page, re.MULTILINE)
    found: dict[str, list[str]] = {}
    for name, status in rows:
        found.setdefault(name or list(found)[-1], []).append(status)
    assert {name.partition(" ")[0] for name in found} == set(COMMANDS)
    assert [name for name, statuses in found.items() if not {"0", "2"} <= set(statuses)] == ["run"]


def test_the_sample_file_is_the_default(tmp_path: Path) -> None:
    """With every setting uncommented it is valid, and means what an empty file means."""
    lines = sample_file().splitlines()
    assert all(line.startswith(("# ", "## ")) or not line for line in lines)
    used = "\n".join(line.removeprefix("# ") for line in lines if not line.startswith("##"))
    (tmp_path / "exporter.yml").write_text(used, encoding="utf-8")
    paths = ["--socket=/run/tachograph/rank.sock", "--state-file=/run/tachograph/rank.state"]
    sample = asdict(read_config(["--config", str(tmp_path / "exporter.yml")], {}))
    assert sample == asdict(read_config(paths, {}))
    assert used.count("\n") > 30


def test_groups_of_rules_are_within_mimirs_limits() -> None:
    """By default Mimir allows 20 rules a group and 70 groups; the page names the one group that has more."""
    groups = [
        group
        for path in (ROOT / "prometheus/rules").glob("*.yml")
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]
    ]
    sizes = {group["name"]: len(group["rules"]) for group in groups}
    dcgm = sizes.pop("tachograph-dcgm")
    page = (ROOT / "docs/deploy/other-prometheus.md").read_text(encoding="utf-8")
    assert max(sizes.values()) <= 20
    assert len(groups) <= 70
    assert f"`tachograph-dcgm` with {dcgm} rules" in page
    assert f"group: {dcgm}`" in page
