"""The part of the build that pyproject.toml cannot say: what goes into the wheel beside the package, and its README.

A checkout, and an installation with `-e`, read the same files where they are (`exporter/tachograph/files/shipped.py`).
"""

import re
from pathlib import Path
from shutil import copy, copytree, rmtree

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
SHIPPED = (
    "prometheus/*.yml",
    "prometheus/src/*.yml",
    "prometheus/rules/dcgm.yml",
    "prometheus/targets/*.yml",
    "alertmanager/*.yml",
    "alertmanager/examples/receivers.yml",
    "alertmanager/examples/more-receivers.yml",
    "alertmanager/templates/*.tmpl",
    "grafana/dashboards/*.json",
    "runbooks/*.md",
)
REPOSITORY = "https://github.com/tachograph/tachograph"
VIEWER = HERE / "grafana/preview/out"


class WithShippedFiles(build_py):
    """Builds the package, the shipped files, and the viewer of the dashboards where `make preview` has built one."""

    def run(self) -> None:
        """Build the package, then copy the files into it; raise FileNotFoundError if some are not there."""
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "tachograph"
        for folder in ("shipped_files", "dashboards/viewer"):  # an earlier build may have left files that are gone
            rmtree(package / folder, ignore_errors=True)
        for pattern in SHIPPED:
            found = sorted(HERE.glob(pattern))
            if not found:
                raise FileNotFoundError(f"{HERE / pattern}: nothing to ship")
            for path in found:
                target = package / "shipped_files" / path.relative_to(HERE)
                target.parent.mkdir(parents=True, exist_ok=True)
                copy(path, target)
        if (VIEWER / "index.html").is_file():
            copytree(VIEWER, package / "dashboards/viewer", dirs_exist_ok=True)


def readme() -> str:
    """Return the README with links that lead to the repository: on PyPI there are no files beside it."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", text)


setup(cmdclass={"build_py": WithShippedFiles}, long_description=readme(), long_description_content_type="text/markdown")
