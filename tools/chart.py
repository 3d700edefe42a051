"""`python -m tools.chart`: write what the Helm chart takes from the bundle's code, and the chart's default rendering.

Rules, dashboards and parameters are links in the chart to the committed ones, so there is nothing to write for them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tachograph.bundle import kubernetes, routes
from tachograph_lab.checkout import root
from tools import helm

CHART = Path("deploy/helm/tachograph")
MANIFEST = Path("deploy/kubernetes/tachograph.yaml")
HEADER = "# Made by `make chart` from deploy/helm/tachograph with its default values: edit that.\n"


def files() -> dict[Path, str]:
    """Return the chart's files that are made from code, by path in the repository."""
    return {
        CHART / "files/podmonitor.yml": routes.dumped(kubernetes.pod_monitor()),
        CHART / "files/alertmanagerconfig.yml": routes.dumped(_without("receivers", kubernetes.alertmanager(()))),
        CHART / "files/receivers.yml": routes.dumped(_receivers()),
    }


def _receivers() -> list[dict[str, object]]:
    """Return each receiver of an AlertmanagerConfig in every kind, for the chart's values to choose from."""
    of_kind = {kind: kubernetes.alertmanager([kind])["receivers"] for kind in sorted(routes.KINDS)}
    return [
        {
            "name": same[0]["name"],
            "servedBy": [kind for kind in of_kind if same[0]["name"] in routes.KINDS[kind]],
            "ofKind": {kind: _without("name", receiver) for kind, receiver in zip(of_kind, same, strict=True)},
        }
        for same in zip(*of_kind.values(), strict=True)
    ]


def _without(key: str, document: Mapping[str, object]) -> dict[str, object]:
    return {one: value for one, value in document.items() if one != key}


def manifest(program: Path) -> str:
    """Return the manifest that Helm renders with the chart's default values."""
    command = [str(program), "template", "tachograph", str(root() / CHART)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return HEADER + done.stdout


def main() -> int:
    """Write every file; return the exit status."""
    for path, text in files().items():
        (root() / path).write_text(text, encoding="utf-8")
    try:
        text = manifest(helm.ensure())
    except helm.HelmUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
        return 1
    (root() / MANIFEST).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
