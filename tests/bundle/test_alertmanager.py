"""Alertmanager's configuration in a bundle, alone and merged into another's, and what --check finds missing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tachograph.bundle import command, routes
from tests.conftest import NEWEST
from tests.every import every

pytestmark = pytest.mark.usefixtures("wide")

Write = Callable[..., Path]
OLD = [kind for kind in command.RECEIVERS if kind not in routes.NEEDS]
CHOICES = [chosen for count in (0, 1, 2, len(OLD)) for chosen in combinations(OLD, count)]


def amtool(programs: Mapping[str, Path], *arguments: str | Path) -> str:
    done = subprocess.run([programs["amtool"], *arguments], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_kinds_are_those_of_the_flag() -> None:
    """Each has its receivers."""
    assert set(routes.KINDS) == set(command.RECEIVERS)


def test_alertmanager_accepts_every_choice_of_receivers(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """Alone and as a sub-route; no receiver is empty except the one for alerts that are never sent."""
    accepts(programs, tmp_path / "out", CHOICES)


@pytest.mark.parametrize("programs", [NEWEST], indirect=True)
def test_a_newer_alertmanager_accepts_the_newer_receivers(programs: Mapping[str, Path], tmp_path: Path) -> None:
    """Each alone, and all together; the others' configurations are not changed by them."""
    accepts(programs, tmp_path / "out", [*((kind,) for kind in routes.NEEDS), command.RECEIVERS])


def accepts(programs: Mapping[str, Path], out: Path, choices: Iterable[Sequence[str]]) -> None:
    """Fail unless amtool takes the configuration of each choice."""
    for chosen in choices:
        flags = [word for kind in chosen for word in ("--receiver", kind)]
        assert command.main(["--out", str(out), "--force", *flags]) == 0
        for name in ("alertmanager.yml", "subroute.yml"):
            assert "SUCCESS" in amtool(programs, "check-config", out / "alertmanager" / name)
            found = yaml.load((out / "alertmanager" / name).read_text(encoding="utf-8"), yaml.CSafeLoader)["receivers"]
            assert [one["name"] for one in found if len(one) == 1] == ["null"]


@pytest.mark.parametrize(
    ("chosen", "kinds"),
    [
        (
            ["slack", "email"],
            {"page": ["slack"], "escalation": ["slack"], "ticket": ["email"], "chat": ["slack"]},
        ),
        (
            ["slack", "pagerduty"],
            {"page": ["slack", "pagerduty"], "escalation": ["pagerduty"], "ticket": ["slack"], "chat": ["slack"]},
        ),
        (
            ["pagerduty", "email"],
            {"page": ["pagerduty"], "escalation": ["pagerduty"], "ticket": ["email"], "chat": ["email"]},
        ),
        (["email"], {name: ["email"] for name in ("page", "escalation", "ticket", "chat")}),
        (["pagerduty"], {name: ["pagerduty"] for name in ("page", "escalation", "ticket", "chat")}),
    ],
)
def test_a_receiver_has_the_kinds_that_suit_it(write: Write, chosen: list[str], kinds: dict[str, list[str]]) -> None:
    """A pager gets no tickets and no dev runs while anything else was chosen; a ticket is never lost."""
    path = write(*(word for kind in chosen for word in ("--receiver", kind))) / "alertmanager/alertmanager.yml"
    receivers = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["receivers"]
    found = {one["name"]: [key.removesuffix("_configs") for key in one if key != "name"] for one in receivers}
    assert {name: found[name] for name in kinds} == kinds


@every("chosen", [each for count in (1, 2, 3) for each in combinations(command.RECEIVERS, count)])
def test_a_pager_gets_tickets_only_if_it_is_all_there_is(chosen: Sequence[str]) -> None:
    """And then it is said."""
    for receiver in ("ticket", "chat"):
        woken = set(routes.kinds_of(receiver, chosen)) & set(routes.PAGERS)
        assert bool(woken) == (set(chosen) <= set(routes.PAGERS)) == (receiver in routes.woken_for(chosen))


def test_a_pager_that_gets_tickets_is_said(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to add."""
    write("--receiver", "pagerduty")
    assert (
        "tickets and runs of the tier dev go to pagerduty, because nothing else was chosen" in capsys.readouterr().out
    )
    write("--receiver", "pagerduty", "--receiver", "slack", "--force")
    assert "tickets and runs" not in capsys.readouterr().out


def test_no_secret_is_in_a_file(write: Write) -> None:
    """Only the path of one."""
    text = write(*(word for kind in command.RECEIVERS for word in ("--receiver", kind))) / "alertmanager/subroute.yml"
    secrets = [line.split(":")[0].strip(" -") for line in text.read_text(encoding="utf-8").splitlines()
               if any(word in line.split(":")[0] for word in ("key", "password", "api_url"))]  # fmt: skip
    assert secrets
    assert all(name.endswith("_file") for name in secrets)


def test_others_alerts_take_no_route_of_ours(programs: Mapping[str, Path], write: Write) -> None:
    """Ours go where the shipped configuration sends them; others' stay where they were."""
    path = write() / "alertmanager/subroute.yml"
    for labels, receiver in {
        "component=tachograph alertname=RankDead severity=critical run=r": "page",
        "component=tachograph alertname=TachographWatchdog severity=none": "watchdog",
        "component=tachograph alertname=GoodputLow severity=warning run=r": "ticket",
        "alertname=NodeDown severity=critical": "null",
    }.items():
        amtool(
            programs,
            "config",
            "routes",
            "test",
            f"--config.file={path}",
            f"--verify.receivers={receiver}",
            *labels.split(),
        )


@pytest.fixture
def merged(write: Write) -> Callable[[Callable[[dict[str, Any]], object]], Path]:
    """Write the sub-route with a change; return its path."""
    path = write() / "alertmanager/subroute.yml"

    def change(how: Callable[[dict[str, Any]], object]) -> Path:
        document = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        how(document)
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        return path

    return change


@pytest.mark.parametrize("name", ["alertmanager.yml", "subroute.yml"])
def test_a_complete_configuration_lacks_nothing(write: Write, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped one, and the sub-route."""
    path = write() / "alertmanager" / name
    capsys.readouterr()
    assert command.main(["--check", str(path)]) == 0
    assert capsys.readouterr().out.startswith(
        f"{path} has our route, inhibitions and templates, and delivers every alert.\nnext: amt"
    )


def _ours(document: dict[str, Any]) -> Any:
    return document["route"]["routes"][0]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda one: one["route"].pop("routes"), 'route: none has the matcher component="tachograph"'),
        (lambda one: _ours(one).update(group_by=["job"]), 'route: alerts of component='),
        (lambda one: _ours(one)["routes"].pop(0), 'there is none with alertname="TachographWatchdog"'),
        (lambda one: _ours(one)["routes"][5]["routes"].pop(0), 'under severity="critical" there is none'),
        (lambda one: one["inhibit_rules"].pop(0), 'inhibit_rules: alertname="NodeDown", severity="critical" does not'),
        (lambda one: one["inhibit_rules"][0].update(equal=["job"]), 'inhibit_rules: alertname="NodeDown"'),
        (lambda one: one.pop("templates"), "templates: no file that is named there"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_its_lines(
    merged: Callable[..., Path], capsys: pytest.CaptureFixture[str], how: Callable[[dict[str, Any]], object], said: str
) -> None:
    """Once each; the lines are YAML."""
    path = merged(how)
    capsys.readouterr()
    assert command.main(["--check", str(path)]) == 1
    output = capsys.readouterr()
    assert output.err.endswith("lacks what is listed above (1); docs/deploy/alertmanager.md has the order\n")
    assert said in output.out.splitlines()[0]
    (added,) = yaml.load(output.out, yaml.CSafeLoader)
    assert added in {"routes", "group_by", "inhibit_rules", "templates"}


def test_another_alertmanager_lacks_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With routes in the older notation, too; what is printed makes it complete."""
    path = tmp_path / "theirs.yml"
    path.write_text(
        "route: {receiver: a, routes: [{match: {team: x}, receiver: a}]}\nreceivers: [{name: a}]\n", encoding="utf-8"
    )
    assert command.main(["--check", str(path)]) == 1
    theirs = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    for part in capsys.readouterr().out.split("# missing in ")[1:]:
        for key, value in yaml.load(part.partition("\n")[2], yaml.CSafeLoader).items():
            if key == "routes":
                theirs["route"]["routes"] = value + theirs["route"]["routes"]
            else:
                theirs[key] = [*theirs.get(key, []), *value]
    path.write_text(yaml.safe_dump(theirs), encoding="utf-8")
    assert command.main(["--check", str(path)]) == 1
    assert capsys.readouterr().out.startswith("# missing in templates:")  # of which there are no files yet


def test_a_stock_configuration_gets_one_block_for_each_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of kube-prometheus: what is missing, each key once, and no verdict on where our alerts would go."""
    path = tmp_path / "stock.yml"
    path.write_text(
        "route: {receiver: Default, group_by: [namespace], routes: [{matchers: ['alertname = Watchdog'], "
        "receiver: Watchdog}, {matchers: ['alertname = InfoInhibitor'], receiver: 'null'}]}\n"
        "receivers: [{name: Default}, {name: Watchdog}, {name: 'null'}]\n"
        "inhibit_rules: [{equal: [namespace], source_matchers: ['severity = critical'], "
        "target_matchers: ['severity =~ warning|info']}]\n",
        encoding="utf-8",
    )
    assert command.main(["--check", str(path)]) == 1
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if not line.startswith((" ", "-", "#"))] == [
        "templates:", "routes:", "inhibit_rules:"
    ]  # fmt: skip
    assert "*_configs" not in printed
    assert set(yaml.load(printed, yaml.CSafeLoader)) == {"templates", "routes", "inhibit_rules"}


def test_a_receiver_that_is_not_defined_is_said(
    merged: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Alertmanager would refuse the file; it does not deliver everything."""
    path = merged(lambda one: one.update(receivers=[each for each in one["receivers"] if each["name"] != "ticket"]))
    assert command.main(["--check", str(path)]) == 1
    assert "sends to `ticket`, which is not defined\n#   add `ticket` to `receivers:`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory"),
        ("route: [", "not YAML"),
        ("groups: []\n", "expected Alertmanager's configuration"),
        ("route: {routes: [3]}\n", "not as Alertmanager wants it"),
        ("route: {routes: [{matchers: [a]}]}\n", "'a' is not a matcher"),
        ("route: &a {routes: [*a]}\n", "not as Alertmanager wants it"),
        ("route: {routes: [{match_re: {a: '('}}]}\n", "not as Alertmanager wants it"),
        ("route: {}\nreceivers: [{webhook_configs: [1]}]\n", "not as Alertmanager wants it"),
    ],
)
def test_what_is_no_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    """In one line, with its path."""
    path = tmp_path / "theirs.yml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert command.main(["--check", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith(f"tachograph bundle: {path}: ")
    assert error.count("\n") == 1
