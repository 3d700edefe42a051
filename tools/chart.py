"""`python -m tools.chart`: write what the Helm chart takes from the bundle's code, and the chart's default rendering.

Rules, dashboards and parameters are links in the chart to the committed ones; of the rules, the lines
with a limit are written. What a site sets by the chart's values stands between @ here.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tachograph.bundle import kubernetes, routes, rules
from tachograph.findings.limits import applied
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
        CHART / "files/limits.yml": routes.dumped(_limits()),
    }


def _limits() -> dict[str, list[dict[str, str]]]:
    """Return the lines that have a limit, by file of rules: as shipped, and with @ in its place."""
    found: dict[str, list[dict[str, str]]] = {}
    usual = rules.parameters()
    for source in rules.sources():
        shipped = rules.rendered(source, usual).splitlines()
        for name in applied({}, {}):
            made = rules.rendered(source, {**usual, name: "@"}).splitlines()
            lines = {old: new for old, new in zip(shipped, made, strict=True) if old != new}
            found.setdefault(source.name, []).extend(
                {"limit": name, "shipped": f"\n{old}", "made": f"\n{new}"} for old, new in lines.items()
            )
    return {name: lines for name, lines in found.items() if lines}


def _receivers() -> list[dict[str, object]]:
    """Return each receiver of an AlertmanagerConfig in every kind, for the chart's values to choose from."""
    of_kind = {kind: kubernetes.alertmanager([kind])["receivers"] for kind in routes.KINDS}
    return [
        {
            "name": same[0]["name"],
            "servedBy": [list(group) for group in routes.SERVED_BY.get(same[0]["name"], ())],
            "ofKind": {
                kind: _of_site(_without("name", receiver), same[0]["name"])
                for kind, receiver in zip(of_kind, same, strict=True)
            },
        }
        for same in zip(*of_kind.values(), strict=True)
    ]


def _of_site(receiver: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a receiver without the example's addresses: each is a value of the chart, or in the Secret it names."""
    channel = "@slack.devChannel@" if name == "chat" else "@slack.channel@"
    made: dict[str, Any] = {}
    for kind, configurations in receiver.items():
        made[kind] = [dict(one) for one in configurations]
        for one in made[kind]:
            one.update((key, {**value, "name": "@secret@"}) for key, value in one.items() if _is_secret(value))
            if kind == "slackConfigs":
                one["channel"] = channel
            if kind == "telegramConfigs":
                one["chatID"] = "@telegram.chatId@"
            if kind == "emailConfigs":
                one.update({key: f"@email.{key}@" for key in ("to", "from", "smarthost")})
                one["authUsername"] = "@email.username@"
    return made


def _is_secret(value: object) -> bool:
    return isinstance(value, dict) and value.get("name") == kubernetes.SECRET


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
