"""`python -m tools.pages`: write the files that are made from the catalog and the tables, as `make docs` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.pages.alerts import pages_page
from tools.pages.dcgm_rules import rules_page
from tools.pages.floors import contributing_page
from tools.pages.kernel import kernel_page
from tools.pages.metrics import metrics_page
from tools.pages.reference import reference_page, sample_file
from tools.pages.runbooks import index_page
from tools.pages.scale_out import example_files
from tools.pages.xids import xids_page

ROOT = Path(__file__).parents[2]

PAGES: Mapping[str, Callable[[], str]] = {
    "CONTRIBUTING.md": contributing_page,
    "docs/kernel.md": kernel_page,
    "docs/metrics.md": metrics_page,
    "deploy/exporter.yml": sample_file,
    "docs/pages.md": pages_page,
    "docs/reference.md": reference_page,
    "docs/xids.md": xids_page,
    "prometheus/rules/dcgm.yml": rules_page,
    "runbooks/README.md": index_page,
    **example_files(),
}
"""File -> what writes its text."""


def main() -> None:
    """Write every page."""
    for path, text in PAGES.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
