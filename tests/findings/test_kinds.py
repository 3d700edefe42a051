"""The table of kinds: a row for every alert, and no alert's name anywhere else in the package."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tachograph.findings.kinds import KINDS, RUNBOOKS
from tachograph.silence.command import RESTART_ALERTS
from tachograph_lab.replay.shipped_rules import shipped

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "exporter/tachograph"
WATCHDOG = "TachographWatchdog"
"""Fires while all is well, so it is no finding: `doctor` alone looks for it."""


def test_every_alert_has_one_row() -> None:
    """An alert without a row would say nothing of a run."""
    named = [kind.alert for kind in KINDS]
    assert sorted(named) == sorted(set(shipped().alerts))
    assert len(named) == len(set(named))


def test_an_alert_is_written_by_hand_in_the_table_alone() -> None:
    """Whoever renames one finds all of it in its rule, its runbook, its tests and its row."""
    quoted = re.compile(rf"""["'`|]({"|".join(kind.alert for kind in KINDS)})["'`|]""")
    files = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "findings"]
    assert len(files) > 300
    assert not {
        path.relative_to(PACKAGE): found for path in files if (found := quoted.findall(path.read_text("utf-8")))
    }


def test_runbooks_are_where_the_pages_link_to() -> None:
    """A screen and a page lead to the same address."""
    assert yaml.safe_load((ROOT / "prometheus/parameters.yml").read_text("utf-8"))["runbook_url"] == RUNBOOKS
    assert all((ROOT / "runbooks" / kind.runbook.rpartition("/")[2]).is_file() for kind in KINDS)


def test_a_planned_restart_causes_what_follows_from_an_end() -> None:
    """A run that is restarted ends, is down for a while and slow at first; it does not break a GPU or lose its loss."""
    assert {"RunDown", "RunNotRequeued", "RankDead", "MfuDropped"} <= set(RESTART_ALERTS)
    assert not {"GpuXidFatal", "LossNotFinite", "CheckpointFailed", "NodeDown"} & set(RESTART_ALERTS)
