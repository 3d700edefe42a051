"""`tachograph bundle --out DIR`: write what Prometheus, Alertmanager and Grafana need; or check an Alertmanager."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.command_line import CommandParser, versioned_json
from tachograph.text import duration
from tachograph.text.humanize import listed, plural
from tachograph.text.printable import printable
from tachograph.text.wrapping import columns, fitted, wrapped

if TYPE_CHECKING:
    from tachograph.bundle.site import Site

SCALE_OUT_FILE = Path()
"""What `--check` without a file stands for."""
RECEIVERS = ("webhook", "slack", "pagerduty", "email", "opsgenie", "teams", "telegram", "discord")
WOKEN = (
    "receivers: tickets and runs of the tier dev go to {}, because nothing else was chosen: "
    "add --receiver email or slack"
)
PARAMETERS = {
    "node_job": ("REGEX", "the name of node_exporter's scrape job"),
    "runbook_url": ("URL", "the folder with <Alert>.md, to which alerts link"),
    "exporter_url": ("URL", "where a person reaches the exporter of the node NODE, to which alerts link"),
    "grafana_url": ("URL", "where the dashboards are, to which alerts link"),
}


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tachograph bundle",
        description="Write rules, Alertmanager's routes and templates, dashboards and runbooks to a folder.",
        statuses={
            0: "written; with --check: nothing is missing; with --diff: nothing would change",
            1: "not written; with --check: something is missing; with --diff: this would change",
            2: "wrong arguments, or not an Alertmanager configuration; a fault in --scale-out's file",
        },
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="the folder to write to: a new or an empty one")
    action.add_argument(
        "--check",
        type=Path,
        nargs="?",
        const=SCALE_OUT_FILE,
        metavar="ALERTMANAGER.yml",
        help="say what an Alertmanager configuration lacks, and which alerts would not arrive with it; "
        "with --scale-out and no file: say what is wrong there",
    )
    parser.add_argument(
        "--scale-out",
        type=Path,
        metavar="FILE",
        help="YAML that names cells, each with a Prometheus for its nodes, and the level above, which judges the runs; "
        "--out then writes the files of each",
    )
    parser.add_argument(
        "--format",
        choices=("prometheus", "operator", "configmap"),
        default="prometheus",
        help="plain files (the default), objects of the Prometheus operator, or plain ConfigMaps",
    )
    for name, (metavar, text) in PARAMETERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    parser.add_argument(
        "--scrape-interval",
        metavar="TIME",
        help="how often Prometheus scrapes, 5s to 30s; rules are evaluated no more often (default: 5s; some every 2s)",
    )
    parser.add_argument(
        "--host-series",
        choices=("all", "few"),
        default="all",
        help="few: of node_exporter's series, Prometheus stores only those that our rules and dashboards read, for "
        "very large fleets",
    )
    parser.add_argument(
        "--limits", "--thresholds", type=Path, metavar="FILE", help="YAML with limits of your own: `hang_seconds: 30`"
    )
    parser.add_argument(
        "--receiver",
        action="append",
        default=[],
        choices=RECEIVERS,
        metavar="KIND",
        help=f"how people are notified: {', '.join(RECEIVERS)} (repeatable); secrets are files or Kubernetes secrets, "
        "named at the end",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="write to a folder that is not empty, in place of an earlier bundle; targets/ stays as it is",
    )
    parser.add_argument("--diff", action="store_true", help="print what --out --force would change, and write nothing")
    parser.add_argument("--json", action="store_true", help="with --check: print an object, with the key undelivered")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 if something is missing or not written, 2 for wrong arguments."""
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
        if given.diff and given.check:
            parser.error("--diff goes with --out")
        if given.json and not given.check:
            parser.error("--json goes with --check")
        if given.check and (given.check == SCALE_OUT_FILE) != bool(given.scale_out):
            parser.error("--check takes the configuration of an Alertmanager, or none with --scale-out FILE")
        if given.scale_out and (given.json or given.format != "prometheus"):
            parser.error("--scale-out goes without --json and with --format prometheus")
        if given.host_series == "few" and given.format != "prometheus":
            parser.error(
                "--host-series few goes with --format prometheus: elsewhere another file scrapes node_exporter"
            )
    except SystemExit as end:
        return int(end.code or 0)
    if given.check is None:
        return _write(given)
    return _check_cells(given.scale_out) if given.scale_out else _check(given.check, as_json=given.json)


def _check_cells(path: Path) -> int:
    from tachograph.bundle import scale_out  # YAML is in an extra

    try:
        found = scale_out.read(path)
    except scale_out.ScaleOutError as error:
        return _fail(str(error), 2)
    nodes = sum(map(len, found.cells.values()))
    print(fitted(f"{path} is right: {plural(len(found.cells), 'cell')} with {plural(nodes, 'node')}."))
    _print(f"next: tachograph bundle --scale-out {path} --out DIR")
    return 0


def _check(path: Path, *, as_json: bool) -> int:
    from tachograph.bundle.merged import MergeError, lacks, undelivered_by  # YAML is in an extra

    try:
        found, lost = lacks(path), undelivered_by(path)
    except MergeError as error:
        return _fail(str(error), 2)
    except OSError as error:
        return _fail(f"{path}: {error.strerror}", 2)
    if as_json:
        missing = [{"what": one.what, "lines": one.lines} for one in found]
        content = {"missing": missing, "undelivered": [one._asdict() for one in lost]}
        print(versioned_json(content))
        return 1 if found or lost else 0
    for lack in found:
        print(_comment(f"missing in {lack.what}:"))
        _print(lack.lines)
    for one in lost:
        print(_comment(one.what))
        print(_comment(f"  {one.then}"))
    if found:
        count = sum(one.count for one in found)
        return _fail(f"{path} lacks what is listed above ({count}); docs/deploy/alertmanager.md has the order", 1)
    if lost:
        return _fail(f"{path} does not deliver all of our alerts: see above ({len(lost)})", 1)
    print(fitted(f"{path} has our route, inhibitions and templates, and delivers every alert."))
    _print(f"next: amtool check-config {path}")
    return 0


def _write(given: argparse.Namespace) -> int:
    from tachograph.bundle import folder, rules, scale_out
    from tachograph.bundle.site import Site

    out: Path = given.out.resolve()  # Prometheus reads a relative path from its own folder
    try:
        receivers = tuple(dict.fromkeys(given.receiver))
        seconds, limits = _scrape_seconds(given.scrape_interval), _limits(given.limits)
        site = Site(_values(given), receivers, seconds, limits, given.host_series)
        if out.exists() and not out.is_dir():
            return _fail(f"{out} is not a folder", 2)
        if not (given.force or given.diff) and out.is_dir() and any(out.iterdir()):
            return _fail(f"{out} is not empty: choose another folder, or write into it with --force", 2)
        if given.scale_out:
            files, said = _cells(site, out, given.scale_out)
        else:
            files, said = FORMATS[given.format](site, out)
        if given.diff:
            return _show(folder.changes(out, files))
        edited = folder.write(out, files)
    except (rules.RuleSourceError, scale_out.ScaleOutError) as error:
        return _fail(str(error), 2)
    except OSError as error:
        return _fail(f"{error.filename or out}: {error.strerror}", 1)
    for line in said:
        print(printable(line) if line.startswith("next: ") else fitted(line))
    for name in edited:
        print(fitted(f"{out}/{name} had been edited: that is now {name}{folder.KEPT}; move what you need"))
    return 0


def _show(lines: Iterator[str]) -> int:
    """Print what would change; return 0 if nothing would."""
    status = 0
    for line in lines:
        status = 1
        _print(line)
    return status


def _values(given: argparse.Namespace) -> dict[str, str]:
    """Return the parameters that were given; raise RuleSourceError."""
    from tachograph.bundle import rules

    values = {}
    for name in PARAMETERS:
        if (text := getattr(given, name)) is not None:
            try:
                values[name] = rules.parameter(name, text)
            except argparse.ArgumentTypeError as error:
                raise rules.RuleSourceError(f"--{name.replace('_', '-')}: {error}") from error
    return values


def _limits(path: Path | None) -> dict[str, float]:
    """Return the limits of a file, none without one; raise RuleSourceError."""
    from tachograph.bundle import rules

    try:
        return rules.read_limits(path) if path else {}
    except OSError as error:
        raise rules.RuleSourceError(f"{path}: {error.strerror}") from error


def _scrape_seconds(text: str | None) -> int:
    """Return the seconds between two scrapes, 0 if they were not given; raise RuleSourceError."""
    if text is None:
        return 0
    from tachograph.bundle import rules

    try:
        return duration.scrape_interval(text)
    except ValueError as error:
        raise rules.RuleSourceError(f"--scrape-interval: {error}") from error


Written = tuple[Mapping[str, str], Sequence[str]]
"""Files by their path in the folder, and what to say when they are written."""


def _plain(site: Site, out: Path) -> Written:
    files = site.files()
    return files, [
        f"{out}/prometheus.yml: for a new Prometheus; its first lines say how to start it, targets/ names the nodes",
        f"{out}/rules: {_count(files, 'rules/')} rule files; in a Prometheus of yours: rule_files: [{out}/rules/*.yml]",
        *_beside_rules(site, out, files),
        f"next: promtool check rules {out}/rules/*.yml && tachograph bundle --check YOUR-ALERTMANAGER.yml",
    ]


def _cells(site: Site, out: Path, path: Path) -> Written:
    """Return the same for cells and the level above that a file names; raise ScaleOutError."""
    from tachograph.bundle import scale_out

    found = scale_out.read(path)
    files = scale_out.files(site, found)
    return files, [
        f"{out}/cells: a folder for the Prometheus of each cell ({listed(list(found.cells))})",
        f"{out}/above: for the Prometheus that judges runs, on {listed(found.prometheus)}; see its first lines",
        *_beside_rules(site, out, files),
        f"next: promtool check config {out}/cells/*/prometheus.yml {out}/above/prometheus-*.yml",
    ]


def _beside_rules(site: Site, out: Path, files: Mapping[str, str]) -> list[str]:
    return [
        *_applied_by(site, f"{out}/exporter.yml: the --config of every exporter, or part of it"),
        f"{out}/alertmanager: alertmanager.yml for a dedicated Alertmanager, subroute.yml to merge into yours",
        f"{out}/dashboards: {_count(files, 'dashboards/')} dashboards; the data source's uid is `prometheus`",
        f"{out}/runbooks: {_count(files, 'runbooks/')} runbooks; serve them at --runbook-url",
        *_secrets(site, files["alertmanager/alertmanager.yml"]),
    ]


def _secrets(site: Site, text: str) -> list[str]:
    """Return what is still to be filled in for the chosen receivers."""
    from tachograph.bundle import routes  # YAML is in an extra

    if not site.receivers:
        return ["receivers: webhooks on this machine; --receiver slack, pagerduty or another kind writes others"]
    files = sorted({line.split()[-1] for line in text.splitlines() if "_file: " in line})
    wanted = f"create {', '.join(files)}, and " if files else ""
    woken = routes.woken_for(site.receivers)
    newer = [f"{kind} needs Alertmanager {routes.NEEDS[kind]}" for kind in site.receivers if kind in routes.NEEDS]
    return [
        f"receivers: {wanted}put your addresses into `receivers:` of both files, the watchdog's too",
        *([f"receivers: {', '.join(newer)} or later"] if newer else []),
        *([WOKEN.format(" and ".join(site.receivers))] if woken else []),
    ]


def _applied_by(site: Site, text: str) -> list[str]:
    """Return where the site's limits go, if it has any: rules alone apply them only to exporters of 0.2."""
    return [text] if site.limits else []


def _count(files: Mapping[str, str], folder: str) -> int:
    return sum(name.startswith(folder) for name in files)


def _operator(site: Site, out: Path) -> Written:
    from tachograph.bundle import kubernetes

    files = kubernetes.operator(site)
    keys = ", ".join(kubernetes.secret_keys(site.receivers))
    return files, [
        f"{out}/rules: {_count(files, 'rules/')} PrometheusRules, one for each subject",
        *_applied_by(
            site, f"{out}/exporter.yml: mount it into the exporters as their --config; the Helm chart has `limits`"
        ),
        f"{out}/podmonitor.yml: pods with the label app.kubernetes.io/name=tachograph and a port `metrics`",
        f"{out}/alertmanagerconfig.yml: create the Secret {kubernetes.SECRET} with {keys}; put in your addresses",
        "  and set alertmanagerConfigMatcherStrategy: {type: None} in the Alertmanager: our alerts have no namespace",
        f"{out}/alertmanager-templates.yml: for an Alertmanager's alertmanagerConfiguration.templates",
        f"{out}/dashboards: {_count(files, 'dashboards/')} ConfigMaps with the label grafana_dashboard=1",
        f"{out}/runbooks: {_count(files, 'runbooks/')} runbooks; serve them at --runbook-url",
        f"next: kubectl apply --server-side --recursive --namespace monitoring --filename {out}",
    ]


def _config_maps(site: Site, out: Path) -> Written:
    from tachograph.bundle import kubernetes

    files = kubernetes.config_maps(site)
    return files, [
        f"{out}/rules.yml: mount it into Prometheus and name its files in rule_files",
        *_applied_by(
            site, f"{out}/exporter.yml: mount it into the exporters as their --config; the Helm chart has `limits`"
        ),
        f"{out}/alertmanager.yml, alertmanager-templates.yml: mount the second as `templates` beside the first",
        f"{out}/dashboards: {_count(files, 'dashboards/')} ConfigMaps with the label grafana_dashboard=1",
        f"{out}/runbooks: {_count(files, 'runbooks/')} runbooks; serve them at --runbook-url",
        *_secrets(site, files["alertmanager.yml"]),
        f"next: kubectl apply --server-side --recursive --namespace monitoring --filename {out}",
    ]


FORMATS: Mapping[str, Callable[[Site, Path], Written]] = {
    "prometheus": _plain,
    "operator": _operator,
    "configmap": _config_maps,
}


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in wrapped([printable(text)], columns() - 2))


def _print(text: str) -> None:
    """Print what is to be copied, as it is."""
    print("\n".join(printable(line) for line in text.splitlines()))


def _fail(text: str, status: int) -> int:
    for line in text.splitlines():
        print(printable(f"tachograph bundle: {line}"), file=sys.stderr)
    return status
