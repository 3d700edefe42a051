"""The version is defined once, and every other place that names it follows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tachograph import __version__
from tools import chart
from tools.release import versions

ROOT = Path(__file__).resolve().parents[2]
DEFINED = {"exporter/tachograph/_version.py", "CHANGELOG.md"}
FOREIGN = ("package-lock.json", "tests/captures/", "deploy/debian/", ".lock")
"""Files of other packages' versions, and recordings of an earlier one of ours."""


def test_every_place_has_it() -> None:
    for path, text in versions.files(ROOT):
        assert path.read_text(encoding="utf-8") == text, f"{path}: run `make chart`"


def test_no_other_place_names_it() -> None:
    """Or it would stay behind with the next release."""
    number = re.compile(rf"(?<![\d.=]){re.escape(__version__)}(?![\d.])")
    listed = subprocess.run(["git", "grep", "-IlF", __version__], cwd=ROOT, capture_output=True, text=True, check=True)
    places = {
        name
        for name in listed.stdout.split()
        if not any(one in name for one in FOREIGN) and number.search((ROOT / name).read_text(encoding="utf-8"))
    }
    assert places == DEFINED | versions.PLACES.keys() | {str(chart.MANIFEST)}


def test_a_place_that_is_gone_is_named(tmp_path: Path) -> None:
    for name in versions.PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("nothing\n")
    with pytest.raises(versions.NoVersionError, match=r"Chart\.yaml has no version after"):
        list(versions.files(tmp_path))


def test_the_changelog_has_its_date() -> None:
    """One heading of the version, so that its entries are found."""
    heading = rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d{{2}}-\d{{2}}$"
    assert len(re.findall(heading, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)) == 1
