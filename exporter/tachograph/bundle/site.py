"""The files of a bundle, by their paths in it, for the addresses, job names, limits and receivers of a site."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tachograph.bundle import levels, routes, rules
from tachograph.files import shipped
from tachograph.findings.limits import LIMITS

CLICKED, BOX_PAGE = "${__data.fields.Node}", "/blackbox/${run:percentencode}"
"""What Grafana puts in for the node in the row that a person clicks, and the page of an exporter on the run."""
KEPT = """\
    # Of node_exporter only what rules, texts of alerts, dashboards and `tachograph doctor` read is stored.
    metric_relabel_configs:
      - source_labels: [__name__]
        regex: "{}"
        action: keep
"""
EXPORTER = """\
# Limits for runs that set none of their own, for every exporter: `tachograph exporter --config FILE`. If yours has a
# file, put them into it; SIGHUP applies a change. Exporters apply the limits, and show them to the rules.
"""


@dataclass(frozen=True)
class Site:
    """The choices of a site: parameters of the rules and limits by name, kinds of receivers, how often it scrapes.

    With 0 `scrape_seconds` both files have the shipped intervals. `host_series` is how much of node_exporter is stored.
    """

    values: Mapping[str, str]
    receivers: Sequence[str] = ()
    scrape_seconds: int = 0
    limits: Mapping[str, float] = field(default_factory=dict)
    host_series: str = "all"

    def rules(self) -> dict[str, str]:
        """Return the rule files by name."""
        dcgm = (shipped.folder() / "prometheus/rules/dcgm.yml").read_text(encoding="utf-8")
        made = rules.all_rendered({**self.values, **rules.limit_texts(self.limits)}) | {"dcgm.yml": dcgm}
        return {name: rules.at_scrapes(text, self.scrape_seconds) for name, text in made.items()}

    def prometheus(self) -> dict[str, str]:
        """Return Prometheus' configuration and its target files, by path.

        node_exporter's job has the site's name for it, the first of several; as shipped if that is a pattern.
        """
        text = (shipped.folder() / "prometheus/prometheus.yml").read_text(encoding="utf-8")
        if self.host_series == "few":
            names = "|\\\n          ".join((*self.host_names(), "tachograph_.+"))
            text = re.sub(
                r"(?s)  - job_name: node.*?\n(?=\n)", lambda job: f"{job[0]}{KEPT.format(names)}", text, count=1
            )
        if name := re.match(r"[\w-]+(?=\||$)", self.values.get("node_job", "")):
            text = text.replace("job_name: node\n", f"job_name: {name[0]}\n")
        if self.scrape_seconds:
            text = re.sub(r"(?m)^  (scrape|evaluation)_interval: .*", rf"  \1_interval: {self.scrape_seconds}s", text)
        targets = _read("prometheus/targets/*.yml")
        return {"prometheus.yml": text} | {f"targets/{name}": text for name, text in targets.items()}

    def host_names(self) -> list[str]:
        """Return the names of node_exporter's series that something of ours reads."""
        read = levels.all_read(self.rules(), self.dashboards().values())
        return sorted({"node_exporter_build_info", *(name for name in read if name.startswith("node_"))})

    def exporter(self) -> str:
        """Return the part of the exporters' configuration that goes with the rules: the limits, explained."""
        lines = [EXPORTER, f"{'' if self.limits else '# '}limits:"]
        for limit in LIMITS.values():
            value = self.limits.get(limit.name)
            usual = "" if limit.default is None else f"{limit.default:g}"
            lines.append(f"  # {limit.meaning}: {limit.expected}")
            lines.append(f"  # {limit.name}: {usual}" if value is None else f"  {limit.name}: {value:.12g}")
        return "\n".join(lines) + "\n"

    def dashboards(self) -> dict[str, str]:
        """Return the dashboards by name of file, with the site's addresses and the job of its node_exporter."""
        usual = rules.parameters()
        changed = {**usual, **self.values}
        box, own_box = ((each["exporter_url"] + BOX_PAGE).replace("NODE", CLICKED) for each in (usual, changed))
        if not changed["exporter_url"]:
            own_box = changed["runbook_url"] + "/RunHung.md"
        found = {}
        for name, text in _read("grafana/dashboards/*.json").items():
            text = text.replace(rf"job=~\"{usual['node_job']}\"", rf"job=~\"{changed['node_job']}\"")  # noqa: PLW2901
            text = text.replace(box, own_box)  # noqa: PLW2901
            found[name] = text.replace(usual["runbook_url"] + "/", changed["runbook_url"] + "/")
        return found

    def alertmanager(self) -> dict[str, str]:
        """Return the configuration of a dedicated Alertmanager, and what to merge into another's."""
        return {
            "alertmanager.yml": routes.configuration(self.receivers),
            "subroute.yml": routes.subroute(self.receivers),
        }

    def files(self) -> dict[str, str]:
        """Return every file, for programs that read files."""
        return (
            self.prometheus()
            | {"exporter.yml": self.exporter()}
            | {f"rules/{name}": text for name, text in self.rules().items()}
            | {f"alertmanager/{name}": text for name, text in self.alertmanager().items()}
            | {f"alertmanager/templates/{name}": text for name, text in templates().items()}
            | {f"dashboards/{name}": text for name, text in self.dashboards().items()}
            | runbooks()
        )


def templates() -> dict[str, str]:
    """Return Alertmanager's templates by name of file."""
    return _read("alertmanager/templates/*.tmpl")


def runbooks() -> dict[str, str]:
    """Return the runbooks by path; documents that they link to are the repository's, as a bundle lacks them."""
    repository = rules.parameters()["runbook_url"].rpartition("/")[0]
    pages = _read("runbooks/*.md").items()
    return {f"runbooks/{name}": text.replace("](../", f"]({repository}/") for name, text in pages}


def _read(pattern: str) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(shipped.folder().glob(pattern))}
