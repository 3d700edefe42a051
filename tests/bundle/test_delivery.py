"""Which of our alerts a site's Alertmanager delivers: as its own router and inhibitor decide."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.bundle import command, delivery, routes
from tachograph.findings.kinds import severities
from tachograph_lab.processes import Children, answers, free_port
from tests.schemas import conforms

pytestmark = pytest.mark.usefixtures("wide")

KUBE_PROMETHEUS = """
inhibit_rules:
  - source_matchers: ['severity = critical']
    target_matchers: ['severity =~ warning|info']
    equal: [namespace, alertname]
  - source_matchers: ['severity = warning']
    target_matchers: ['severity = info']
    equal: [namespace, alertname]
  - source_matchers: ['alertname = InfoInhibitor']
    target_matchers: ['severity = info']
    equal: [namespace]
  - target_matchers: ['alertname = InfoInhibitor']
"""
"""Of the chart kube-prometheus-stack."""

Change = Callable[[dict[str, Any]], object]


def merged(change: Change | None = None) -> dict[str, Any]:
    """Return a site's configuration with our part merged into it, changed."""
    found: dict[str, Any] = yaml.safe_load(routes.subroute(()))
    found["receivers"].append({"name": "oncall", "webhook_configs": [{"url": "http://127.0.0.1:1/"}]})
    found.pop("templates")
    if change is not None:
        change(found)
    return found


def in_front(route: dict[str, Any]) -> Change:
    return lambda found: found["route"]["routes"].insert(0, route)


def with_inhibitions(text: str) -> Change:
    return lambda found: found["inhibit_rules"].extend(yaml.safe_load(text)["inhibit_rules"])


STRANGE = """
receiver: oncall
routes:
  - match: {severity: warning}
    match_re: {alertname: "Gpu.+"}
    receiver: ticket
    continue: true
  - matchers: ['{component="tachograph", severity!~"info|none"}']
    routes:
      - matchers: ['tier=hero', 'run=~".+"']
        receiver: page
        continue: true
      - matchers: ['run=""', "alertname!=NodeDown"]
        receiver: chat
"""


@pytest.mark.parametrize(
    "change",
    [
        in_front({"matchers": ["severity = critical"], "receiver": "oncall"}),
        lambda found: found.update(route=yaml.safe_load(STRANGE)),
    ],
)
def test_receivers_are_those_of_amtool(programs: Mapping[str, Path], tmp_path: Path, change: Change) -> None:
    """In each notation of matchers, with and without `continue`, with labels that are missing."""
    configuration, path = merged(change), tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    for alert in list(delivery.synthetic_alerts())[::11]:
        labels = [f"{name}={value}" for name, value in alert.items()]
        done = subprocess.run(
            [programs["amtool"], "config", "routes", "test", f"--config.file={path}", *labels],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert delivery.receivers(configuration, alert) == done.stdout.strip().split(","), alert


@pytest.mark.e2e
def test_inhibitions_are_those_of_a_real_alertmanager(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """What silences a ticket of another run, and what does not."""
    configuration = merged(with_inhibitions(KUBE_PROMETHEUS))
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    ours = {"component": "tachograph", "tier": "standard"}
    source = {**ours, "alertname": "GpuLost", "severity": "critical", "run": "a", "instance": "n1"}
    targets = [
        {**ours, "alertname": name, "severity": "warning", "run": "b", "instance": "n2", **more}
        for name, more in (("GpuLost", {}), ("GoodputLow", {}), ("GpuLost", {"namespace": "training"}))
    ]
    with Children(tmp_path) as children:
        child = children.start("alertmanager", [
            programs["alertmanager"], f"--config.file={tmp_path / 'alertmanager.yml'}",
            f"--storage.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ])  # fmt: skip
        child.wait_until(lambda: answers(f"{url}/-/ready"), 90)
        body = json.dumps([{"labels": labels} for labels in (source, *targets)]).encode()
        request = urllib.request.Request(f"{url}/api/v2/alerts", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).close()

        def silenced() -> list[bool]:
            with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=60) as response:
                found = {json.dumps(one["labels"], sort_keys=True): one["status"] for one in json.load(response)}
            states = [found.get(json.dumps(labels, sort_keys=True), {"state": "unprocessed"}) for labels in targets]
            if any(state["state"] == "unprocessed" for state in states):
                return []
            return [bool(state["inhibitedBy"]) for state in states]

        child.wait_until(lambda: any(silenced()), 90)
        real = silenced()
    rules = configuration["inhibit_rules"]
    assert [any(delivery.mutes(rule, source, target) for rule in rules) for target in targets] == real
    assert real == [True, False, False]


def test_a_complete_configuration_delivers_every_alert() -> None:
    """The shipped one, and one merged into a site's; no alert is silenced by one of another run."""
    for configuration in (routes.shipped_configuration(), merged()):
        assert delivery.undelivered(configuration) == []


@pytest.mark.parametrize(
    ("change", "said", "then"),
    [
        (
            in_front({"matchers": ["severity = critical"], "receiver": "oncall"}),
            '(critical) would not come by our route: the route severity="critical" in front of it sends to `oncall`',
            'move the route component="tachograph" before it',
        ),
        (
            in_front({"matchers": ["tier = hero"], "receiver": "null"}),
            'tier hero) would not arrive: the route tier="hero" sends to `null`, which notifies nobody',
            "give the receiver `null` a *_configs",
        ),
        (
            lambda found: found["receivers"].__setitem__(0, {"name": "page"}),
            '(critical, tier standard) would not arrive: the route severity="critical" sends to `page`, which',
            "give the receiver `page`",
        ),
        (
            with_inhibitions(KUBE_PROMETHEUS),
            "(warning) would be silenced by an alert of ours on another run, through the inhibition "
            'severity="critical" → severity=~"warning|info": neither has namespace, which counts as equal',
            'put component!="tachograph" into its target_matchers',
        ),
        (
            lambda found: found["inhibit_rules"].append(
                {"source_match": {"alertname": "KubeAPIDown"}, "target_match_re": {"severity": ".+"}, "equal": ["az"]}
            ),
            'would be silenced by an alert of yours, through the inhibition alertname="KubeAPIDown" → severity=~".+"',
            'put component!="tachograph" into its target_matchers',
        ),
    ],
)  # fmt: skip
def test_what_is_not_delivered_is_said(
    change: Change, said: str, then: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the alerts it concerns, the reason and what to change; status 1."""
    path = tmp_path / "alertmanager.yml"
    configuration = merged(change)
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    assert command.main(["--check", str(path)]) == 1
    output = capsys.readouterr()
    assert said in output.out
    assert f"#   {then}" in output.out


def test_the_check_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An object with what is missing and what is not delivered; status 1."""
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(merged(with_inhibitions(KUBE_PROMETHEUS))), encoding="utf-8")
    assert command.main(["--check", str(path), "--json"]) == 1
    content = conforms("bundle", capsys.readouterr().out)
    assert [one["what"][:10] for one in content["missing"]] == ["templates:"]
    (one,) = content["undelivered"]
    assert "would be silenced" in one["what"]


def test_the_check_fits_a_terminal(tmp_path: Path, fits: Callable[..., None]) -> None:
    """But for what is to be pasted; a comment stays one."""
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(merged(in_front({"matchers": ['tier="hero"'], "receiver": "null"}))))
    fits(lambda: command.main(["--check", str(path)]), "(?!#)")


def test_which_alerts_are_tried(rules: list[dict[str, Any]]) -> None:
    """Each of the rules' alerts with each of its severities, in all tiers, with and without a run."""
    sent = {
        (rule["alert"], severity)
        for rule in rules
        if "alert" in rule and rule["file"] != "dcgm.yml"
        for severity in severities(rule["labels"]["severity"])
    }
    tried = list(delivery.synthetic_alerts())
    assert {(alert["alertname"], alert["severity"]) for alert in tried} == sent
    assert len(tried) == len(sent) * len(delivery.TIERS) * 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('a="b"', [("a", "=", "b")]),
        (" a =~ b|c ", [("a", "=~", "b|c")]),
        ('{a="b,c", d!="e\\"}"}', [("a", "=", "b,c"), ("d", "!=", 'e"}')]),
        ("a=b,c!~d,", [("a", "=", "b"), ("c", "!~", "d")]),
        ("{}", []),
    ],
)
def test_matchers_in_one_text(text: str, found: list[tuple[str, str, str]]) -> None:
    """As Alertmanager reads them."""
    assert list(routes.all_parsed(text)) == found


@pytest.mark.parametrize("text", ["a", 'a="b', 'a="b"c="d"', "a=b c"])
def test_what_is_no_matcher(text: str) -> None:
    """It is refused."""
    with pytest.raises(ValueError, match="is not a matcher"):
        routes.all_parsed(text)
