"""`python -m tools.release.sbom FILE`: write what the image's Python environment holds, as CycloneDX; `make sbom`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tachograph import __version__
from tachograph_lab.checkout import root
from tools.programs import BuildError, run

DYNAMIC = 'dynamic = ["version", "readme"]'
"""The line of pyproject.toml in whose place cyclonedx-py finds the version."""


def write(checkout: Path, version: str, path: Path) -> None:
    """Write the SBOM of a checkout, which cyclonedx-py checks against the schema; raise BuildError."""
    text = (checkout / "pyproject.toml").read_text(encoding="utf-8")
    assert DYNAMIC in text
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as project:
        project.write(text.replace(DYNAMIC, f'version = "{version}"'))
        project.flush()
        program = Path(sys.executable).with_name("cyclonedx-py")
        command: list[str | Path] = [program, "requirements", "exporter/requirements.lock", "--pyproject", project.name]
        command += ["--output-reproducible", "--validate", "--of", "JSON", "-o", path]
        run(command, checkout, {"PYTHONWARNINGS": "ignore"})


def main(path: Path) -> int:
    """Write this checkout's; return the exit status."""
    try:
        write(root(), __version__, path.resolve())
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
