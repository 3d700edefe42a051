"""`python -m tools.release.versions`, of `make chart`: write the version of the package wherever else it stands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tachograph import __version__
from tachograph_lab.checkout import root

NUMBER = r"\d+\.\d+\.\d+\b"
PLACES: Mapping[str, str] = {
    "deploy/helm/tachograph/Chart.yaml": r"^(?:version|appVersion): (NUMBER)",
    "docker-compose.yml": r"localhost/tachograph:(NUMBER)",
    "deploy/kubernetes/supervise.yaml": r"registry\.example\.com/tachograph-kubectl:(NUMBER)",
    "docs/deploy/kubernetes.md": r"registry\.example\.com/tachograph(?:-kubectl)?:(NUMBER)",
}
"""File -> what stands before the version there; the manifest of Kubernetes has the chart's."""


class NoVersionError(Exception):
    """A file has no version where one is expected."""


def files(checkout: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file with its text as it should be; raise NoVersionError."""
    for name, pattern in PLACES.items():
        text = (checkout / name).read_text(encoding="utf-8")
        found = re.compile(pattern.replace("NUMBER", NUMBER), re.MULTILINE)
        if not found.search(text):
            raise NoVersionError(f"{name} has no version after {pattern!r}: correct tools/release/versions.py")
        yield checkout / name, found.sub(lambda match: match[0].replace(match[1], __version__), text)


def main() -> int:
    """Write them; return the exit status."""
    try:
        for path, text in files(root()):
            path.write_text(text, encoding="utf-8")
    except NoVersionError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
