"""Several cells and the level above: read from a file that names them, written as files for every Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tachograph.bundle import levels, routes, rules
from tachograph.bundle.site import Site
from tachograph.files import shipped
from tachograph.files.yaml_file import YamlFileError, composed
from tachograph.text.humanize import suggestion

JOBS = ("tachograph", "node", "dcgm")
"""The jobs that scrape nodes, each with a file of targets."""
PORTS: Mapping[str, int] = {"tachograph": 10024, "node": 9100}
"""The usual ports. dcgm-exporter is scraped only where the file has a port for it."""
CELLS_GROUP = "tachograph-cells"
"""The rules about cells as such, which only the level above has."""
OWN_DASHBOARD = "node.json"
"""The dashboard that reads all of a node: its data source is the Prometheus of the node's cell."""

NAME, HOST = re.compile(r"[A-Za-z0-9][\w.-]*"), re.compile(r"[\w.-]+|\[[\da-fA-F:.]+\]")
ADDRESS = re.compile(rf"(?:{HOST.pattern}):\d{{1,5}}")
SENT = "THE NAMES OF WHAT IS SENT"

CELL_HEADER = """\
# The Prometheus of cell {name}: it scrapes the nodes, records what is of one node, and sends the level above what rules
# and dashboards read there. It has no alerts. Valid on Prometheus 2.42 and on 3.x. Start it with
#
#   prometheus --config.file=cells/{name}/prometheus.yml
#
# Made by `tachograph bundle --scale-out`.

"""
ABOVE_HEADER = """\
# Replica {number} of the level above: it receives what the cells send, judges runs and notifies every Alertmanager.
# Valid on Prometheus 2.42 and on 3.x. Start it with
#
#   prometheus --config.file=above/prometheus-{number}.yml --web.enable-remote-write-receiver \\
#     --web.external-url=http://{address} --rules.alert.for-grace-period=15s
#
# Let nobody but the cells write to it: what it receives decides who is paged. Made by `tachograph bundle --scale-out`.

"""


class ScaleOutError(Exception):
    """A file of cells that is wrong; the text has a line for each fault."""


@dataclass(frozen=True)
class ScaleOut:
    """The nodes of each cell, the port of each job there, and the addresses of the level above."""

    cells: Mapping[str, Sequence[str]]
    ports: Mapping[str, int]
    prometheus: Sequence[str]
    alertmanager: Sequence[str]


def read(path: Path) -> ScaleOut:
    """Return what a file says; raise ScaleOutError with each of its faults."""
    try:
        root = composed(path)
    except OSError as error:
        raise ScaleOutError(f"{path}: {error.strerror}") from error
    except YamlFileError as error:
        raise ScaleOutError(str(error)) from error
    if root is None:
        raise ScaleOutError(f"{path}:1: expected `above:` and `cells:`, but the file is empty")
    form = ScaleOutForm()
    parts = form.keys(root, "above", "cells", may=("ports",))
    above = form.keys(parts.get("above"), "prometheus", "alertmanager")
    found = ScaleOut(
        cells={
            name: form.nodes(form.keys(node, "nodes").get("nodes")) for name, node in form.cells(parts.get("cells"))
        },
        ports={**PORTS, **form.ports(parts.get("ports"))},
        prometheus=form.addresses(above.get("prometheus")),
        alertmanager=form.addresses(above.get("alertmanager")),
    )
    if form.faults:
        raise ScaleOutError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(form.faults)))
    return found


class ScaleOutForm:
    """The form that a file of cells must have: returns the parts that have it, and collects faults with their lines."""

    def __init__(self) -> None:
        self.faults: list[tuple[int, str]] = []
        self._line_of: dict[str, int] = {}

    def keys(self, node: yaml.Node | None, *must: str, may: Sequence[str] = ()) -> dict[str, yaml.Node]:
        """Return the values of a mapping that has these keys; of a part that is missing there are none."""
        if node is None:
            return {}
        known = (*must, *may)
        found = self._mapping(node, f"expected {' and '.join(f'`{name}:`' for name in must or may)}")
        for name in must:
            if found and name not in found:
                self._fault(node, f"`{name}:` is missing")
        for name, value in found.items():
            if name not in known:
                self._fault(value, f"`{name}` is not a key here; {suggestion(name, known)}")
        return {name: value for name, value in found.items() if name in known}

    def cells(self, node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
        """Yield cells by name."""
        wanted = "expected cells by name, such as `hall-1: {nodes: [node-1]}`"
        for name, value in ({} if node is None else self._mapping(node, wanted)).items():
            if NAME.fullmatch(name):
                yield name, value
            else:
                self._fault(value, f"{name!r} is not a cell name: expected letters, digits, `.`, `_` and `-`")

    def nodes(self, node: yaml.Node | None) -> list[str]:
        """Return names of nodes, each of which is in one cell, once."""
        found = []
        for each, text in self._texts(node):
            if not HOST.fullmatch(text):
                self._fault(each, f"{text!r} is not a node's name: expected a host without a port")
            elif text in self._line_of:
                self._fault(
                    each, f"{text} was given in line {self._line_of[text]} already, and a node belongs to one cell"
                )
            else:
                self._line_of[text] = each.start_mark.line + 1
                found.append(text)
        return found

    def addresses(self, node: yaml.Node | None) -> list[str]:
        """Return at least one address, each once."""
        found: list[str] = []
        for each, text in self._texts(node):
            if not ADDRESS.fullmatch(text) or not 0 < int(text.rpartition(":")[2]) < 65536:
                self._fault(each, f"{text!r} is not an address: expected HOST:PORT")
            elif text in found:
                self._fault(each, f"{text} is given twice")
            else:
                found.append(text)
        if isinstance(node, yaml.SequenceNode) and not node.value:
            self._fault(node, "expected at least one address, HOST:PORT")
        return found

    def ports(self, node: yaml.Node | None) -> dict[str, int]:
        """Return ports by job."""
        found = {}
        for job, value in self.keys(node, may=JOBS).items():
            text = value.value if isinstance(value, yaml.ScalarNode) else ""
            if re.fullmatch(r"[1-9]\d{0,4}", text) and int(text) < 65536:
                found[job] = int(text)
            else:
                self._fault(value, f"`{job}` must be a port, from 1 to 65535")
        return found

    def _mapping(self, node: yaml.Node, wanted: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode) or not node.value:
            self._fault(node, wanted)
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if name in found:
                self._fault(key, f"`{name}` is given twice")
            found[name] = value
        return found

    def _texts(self, node: yaml.Node | None) -> Iterator[tuple[yaml.Node, str]]:
        if isinstance(node, yaml.SequenceNode):
            for each in node.value:
                yield each, each.value if isinstance(each, yaml.ScalarNode) else "?"
        elif node is not None:
            self._fault(node, "expected a list, such as [a, b]")

    def _fault(self, node: yaml.Node, text: str) -> None:
        self.faults.append((node.start_mark.line + 1, text))


def files(site: Site, scale_out: ScaleOut) -> dict[str, str]:
    """Return the files of a bundle for several cells, by path; raise RuleSourceError."""
    whole = site.files()
    boards = [text for name, text in site.dashboards().items() if name != OWN_DASHBOARD]
    split = levels.split(site.rules(), boards)
    single = ("prometheus.yml", "targets/", "rules/")
    found = {name: text for name, text in whole.items() if not name.startswith(single)}
    usual: dict[str, Any] = yaml.safe_load(whole["prometheus.yml"])
    for number, address in enumerate(scale_out.prometheus):
        found[f"above/prometheus-{number}.yml"] = ABOVE_HEADER.format(number=number, address=address) + routes.dumped(
            _above(usual, number)
        )
    found |= {f"above/rules/{name}": text for name, text in split.above.items()}
    found["above/rules/cells.yml"] = _cell_rules(site, scale_out.cells)
    for job in ("prometheus", "alertmanager"):
        found[f"above/targets/{job}.yml"] = routes.dumped([{"targets": list(getattr(scale_out, job))}])
    for cell, nodes in scale_out.cells.items():
        own = f"cells/{cell}"
        found[f"{own}/prometheus.yml"] = CELL_HEADER.format(name=cell) + _cell(
            usual, cell, scale_out.prometheus, split.sent
        )
        found |= {f"{own}/rules/{name}": text for name, text in split.cell.items()}
        for job, port in scale_out.ports.items():
            found[f"{own}/targets/{job}.yml"] = routes.dumped([{"targets": [f"{node}:{port}" for node in nodes]}])
        # Every cell's Prometheus is at an address of its own to others, but not to itself.
        labels = {"instance": f"prometheus-{cell}"}
        found[f"{own}/targets/prometheus.yml"] = routes.dumped([{"targets": ["localhost:9090"], "labels": labels}])
    return found


def _above(usual: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the configuration of a replica: alerts of two are the same, so that each is one to Alertmanager."""
    replica = {"replica": f"{number}"}
    relabel = [{"regex": "replica", "action": "labeldrop"}]
    return {
        "global": {**usual["global"], "external_labels": replica},
        "rule_files": usual["rule_files"],
        "alerting": {"alert_relabel_configs": relabel, **usual["alerting"]},
        "scrape_configs": [job for job in usual["scrape_configs"] if job["job_name"] in ("prometheus", "alertmanager")],
    }


def _cell(usual: Mapping[str, Any], cell: str, above: Sequence[str], sent: Sequence[str]) -> str:
    """Return the configuration of a cell's Prometheus."""
    relabel = [
        {"source_labels": ["__name__"], "regex": SENT, "action": "keep"},
        # What is of all nodes of a cell, or of its Prometheus, is told from that of other cells.
        {
            "source_labels": ["__name__", "job"],
            "regex": f"{levels.OF_ONE_PROMETHEUS}.+;.*|up;prometheus",
            "target_label": "cell",
            "replacement": cell,
        },
    ]
    to = [
        {
            "url": f"http://{address}/api/v1/write",
            "queue_config": {"batch_send_deadline": "500ms"},
            "write_relabel_configs": relabel,
        }
        for address in above
    ]
    jobs = [job for job in usual["scrape_configs"] if job["job_name"] != "alertmanager"]
    parts = {name: usual[name] for name in ("global", "rule_files")}
    text = routes.dumped({**parts, "scrape_configs": jobs, "remote_write": to})
    # Once, with a name on each line, so that a change is one line of a diff: YAML joins the lines that end with \.
    names = "|\\\n          ".join(sent)
    first, *others = text.split(f"regex: {SENT}")
    return "regex: *sent".join([f'{first}regex: &sent "\\\n          {names}"{others[0]}', *others[1:]])


def _cell_rules(site: Site, cells: Mapping[str, Sequence[str]]) -> str:
    """Return the rules about cells as such."""
    each = [f'label_replace(vector({len(nodes)}), "cell", "{name}", "", "")' for name, nodes in cells.items()]
    values = rules.parameters() | dict(site.values) | {"cells": "\nor\n".join(each)}
    text = rules.rendered(shipped.folder() / "prometheus/cells.yml", values)
    return rules.at_scrapes(text.partition("\n")[2], site.scrape_seconds)
