"""docs/README.md leads to every page, and there is a page for what newcomers looked for in vain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_is_in_the_index() -> None:
    """A page that nothing leads to is not read."""
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = {(DOCS / link).resolve() for link in re.findall(r"\]\(([^)#\s]+\.md)", index)}
    missing = [str(page.relative_to(DOCS)) for page in sorted(DOCS.rglob("*.md")) if page not in linked]
    assert missing == ["README.md"], "docs/README.md needs a line for each of these"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("reference.md", ["\n## Recorder", "\n## Exporter", "\n## Environment variables"]),
        ("deploy/upgrade.md", ["\n## Upgrade", "\n## Roll back", "\n## Uninstall"]),
        ("deploy/other-prometheus.md", ["Mimir", "Thanos", "VictoriaMetrics", "Amazon", "Google"]),
        ("why-not.md", ["no rank", "no MFU", "no page"]),
        ("compare.md", ["dcgm-exporter", "node_exporter", "openshift.enabled"]),
    ],
)
def test_a_task_has_its_page(page: str, said: list[str]) -> None:
    """The Recorder's calls, settings, an upgrade, another Prometheus, and why something is not there."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [one for one in said if one.lower() not in text.lower()] == []


def test_reports_of_measurements_are_evidence() -> None:
    """No guide is written by a benchmark: what one writes is in evidence/, which the index lists apart."""
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    written = re.findall(r"writes (?:the table of )?docs/(\S+\.md)", makefile)
    assert len(written) >= 4
    assert [page for page in written if not page.startswith("evidence/")] == []
    guides, _, apart = (DOCS / "README.md").read_text(encoding="utf-8").partition("## You decide whether to use it")
    assert "(evidence/" not in guides
    assert set(re.findall(r"\(evidence/(\S+\.md)\)", apart)) == {one.name for one in (DOCS / "evidence").glob("*.md")}


def test_slurms_setting_comes_before_the_restart_that_reads_it() -> None:
    """Commands are read, and pasted, from the top."""
    text = (DOCS / "deploy/slurm.md").read_text(encoding="utf-8")
    assert 0 < text.index("--gpu.job-mapping-dir") < text.index("systemctl restart tachograph-exporter")
