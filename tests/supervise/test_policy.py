"""Policies: the default one is bounded, and of a bad one every fault is named with its line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.__main__ import main
from tachograph.findings.kinds import KINDS
from tachograph.supervise import policy
from tachograph.supervise.triggers import (
    ALERTS,
    DIVERGING,
    EXITED,
    OF_ALERTS,
    OF_NODES,
    RESTART_LOOP,
    SILENT_CORRUPTION,
    SLOW,
    TRIGGERS,
)  # fmt: skip

GOOD = """version: 1
restarts: {per_hour: 3, per_run: 10}
triggers:
  dead:
    for: 1m
    cool_down: 10s
    ladder: [notify, restart: {per_hour: 1, per_run: 2}, stop]
"""


def faults(folder: Path, text: str) -> list[str]:
    """What is wrong with a policy, without the file's name."""
    path = folder / "policy.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(policy.PolicyError) as error:
        policy.read(path)
    assert all(fault.startswith(f"{path}") for fault in error.value.faults)
    return [fault.removeprefix(f"{path}:") for fault in error.value.faults]


def test_the_default_has_a_bounded_ladder_for_every_trigger() -> None:
    """Every restart has a budget, every ladder an end, and evidence is kept before anything is ended."""
    default = policy.read(policy.DEFAULT)
    assert set(default.rules) == set(TRIGGERS)
    for rule in default.rules.values():
        assert rule.first == ("notify", "keep_evidence")
        assert rule.end in policy.ENDS
        assert all(one.per_hour <= default.restarts.per_hour for one in rule.restarts.values())


def test_triggers_are_findings_of_the_one_table() -> None:
    """Each but the command's own end has alerts in `findings.kinds`, which has the order of what explains what."""
    assert set(ALERTS) == set(TRIGGERS) - {EXITED}
    assert {kind.trigger for kind in KINDS} - {""} == set(ALERTS)
    assert set(OF_ALERTS) == {SLOW, DIVERGING, SILENT_CORRUPTION, RESTART_LOOP}
    assert set(OF_NODES) | set(OF_ALERTS) == set(ALERTS)
    last = {kind.trigger: place for place, kind in enumerate(KINDS)}
    assert list(OF_NODES) == sorted(OF_NODES, key=last.__getitem__)


def test_nothing_is_ended_on_the_word_of_alerts_by_default() -> None:
    """A person is asked before each action of theirs that ends anything."""
    default = policy.read(policy.DEFAULT)
    for trigger in TRIGGERS:
        rule = default.rules[trigger]
        ending = {*rule.restarts, *({policy.STOP} & {rule.end})}
        assert rule.asked == (ending if trigger in OF_ALERTS else set()), trigger


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("version: 1", "version: 2", ["1: version: is 2, and this release reads version 1"]),
        ("version: 1\n", "", ["1: version is missing: write version: 1"]),
        ("  dead:", "  daed:", ["4: triggers: 'daed' is unknown: did you mean dead?"]),
        ("notify, ", "notfy, ", ["7: triggers.dead.ladder: 'notfy' is not an action: did you mean notify?"]),
        (", stop]", "]", ["7: triggers.dead.ladder: has no end: its last action must be stop or leave, not restart"]),
        ("[notify, ", "[notify, stop, ", [
            "7: triggers.dead.ladder: nothing after stop is ever reached",
            "7: triggers.dead.ladder: stop is there twice: its budget says how often",
        ]),
        ("restart: {per_hour: 1, per_run: 2}", "restart", [
            "7: triggers.dead.ladder: restart is unbounded: write restart: {per_hour: 2, per_run: 4}",
        ]),
        ("{per_hour: 1, per_run: 2}", "{per_hour: 1}", [
            "7: triggers.dead.ladder: restart: per_run is missing, so restarts are unbounded",
        ]),
        ("per_run: 2}", "per_run: 1000}", [
            "7: triggers.dead.ladder: restart.per_run: must be a whole number from 1 to 100, not '1000'",
        ]),
        ("per_run: 2}", "per_run: .inf}", [
            "7: triggers.dead.ladder: restart.per_run: must be a whole number from 1 to 100, not '.inf'",
        ]),
        ("per_run: 2}", f"per_run: {'9' * 5000}}}", [
            "7: triggers.dead.ladder: restart.per_run: must be a whole number from 1 to 100, not '9999",
        ]),
        ("for: 1m", f"for: {'9' * 5000}s", ["5: triggers.dead.for: '9999"]),
        ("restarts: {per_hour: 3, per_run: 10}\n", "", [
            "1: restarts is missing: the budget of all restarts together, {per_hour: 3, per_run: 10}",
        ]),
        ("for: 1m", "for: 60", ["5: triggers.dead.for: '60' is not a duration: write 20m, 90s or 1h30m"]),
        ("for: 1m", "for: 2d", ["5: triggers.dead.for: 2d is longer than a day"]),
        ("    for: 1m\n", "", ["5: triggers.dead.for is missing"]),
        ("stop]", "stop, ]\n    ladder: [stop]", ["8: triggers.dead: ladder is given twice"]),
        ("triggers:", "excuses: {sleep: 1m}\ntriggers:", ["3: excuses: 'sleep' is unknown: expected one of init, "]),
        ("[notify, ", "[", None),
        ("[notify, restart: {per_hour: 1, per_run: 2}, stop]", "[]", [
            "7: triggers.dead.ladder: expected a list of actions: notify, keep_evidence, restart, ",
        ]),
        ("[notify, ", "[[notify], ", ["7: triggers.dead.ladder: 'a list or mapping' is not an action: "]),
        ("restart: {per_hour: 1, per_run: 2}, stop]", "stop: {per_hour: 1, per_run: 2}]", [
            "7: triggers.dead.ladder: stop takes nothing but {ask: true}",
        ]),
        ("per_run: 2}", "per_run: 2, ask: maybe}", [
            "7: triggers.dead.ladder: restart.ask: must be true or false, not 'maybe'",
        ]),
        ("per_run: 2}", "per_run: 2, aks: true}", [
            "7: triggers.dead.ladder: restart: 'aks' is unknown: did you mean ",
        ]),
        ("notify, ", "notify: {ask: true}, ", ["7: triggers.dead.ladder: notify takes neither a budget nor `ask`"]),
        ("stop]", "leave: {ask: true}]", ["7: triggers.dead.ladder: leave takes neither a budget nor `ask`"]),
        ("stop]", "stop: {ask: true, per_hour: 1}]", ["7: triggers.dead.ladder: stop takes nothing but {ask: true}"]),
        ("stop]", "stop: {ask: [true]}]", [
            "7: triggers.dead.ladder: stop.ask: must be true or false, not 'a list or mapping'",
            "7: triggers.dead.ladder: stop takes nothing but {ask: true}",
        ]),
    ],
)  # fmt: skip
def test_every_fault_has_its_line(tmp_path: Path, before: str, after: str, expected: Any) -> None:
    """What was written, and what would do instead."""
    assert before in GOOD
    text = GOOD.replace(before, after, 1)
    if expected is None:
        (tmp_path / "good.yml").write_text(text)
        assert policy.read(tmp_path / "good.yml").rules["dead"].first == ()
        return
    found = faults(tmp_path, text)
    assert len(found) == len(expected), found
    assert all(one.startswith(start) for one, start in zip(found, expected, strict=True)), found


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (GOOD.encode("utf-16"), ":1: cannot be read: not UTF-8 at byte 0"),
        (GOOD.encode() + b"# \xe9", ":8: cannot be read: not UTF-8 at byte 162"),
        (GOOD.encode() + b"\0", ":8: not YAML: it has the character U+0000"),
        (GOOD.encode() + b"# \x1b[31m", ":8: not YAML: it has the character U+001B"),
        (GOOD.replace("  dead", "\tdead").encode(), ":4: not YAML: found character '\\t' that cannot start any token"),
        (b"\n" + b"[" * 100_000, ":2: lists and mappings are nested too deeply"),
        (b'\n"\\U00110000": 1\n', ":2: not YAML: chr() arg not in range(0x110000)"),
        (b'\n"\\Uffffffff": 1\n', ":2: not YAML: Python int too large to convert to C int"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_has_its_line(tmp_path: Path, body: bytes, fault: str) -> None:
    """In one line of text, without what it has as it is."""
    path = tmp_path / "policy.yml"
    path.write_bytes(body)
    with pytest.raises(policy.PolicyError) as error:
        policy.read(path)
    assert error.value.faults == (f"{path}{fault}",)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a regular file"), (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (Path.mkdir, "Is a directory"), (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(b"#" * (17 << 20)), "larger than 16 MiB"),
    ],
)  # fmt: skip
def test_what_is_no_file_is_no_policy(tmp_path: Path, make: Callable[[Path], object], why: str) -> None:
    """Refused at once: a pipe would be waited for, and a device has no end."""
    path = tmp_path / "policy.yml"
    make(path)
    with pytest.raises(policy.PolicyError) as error:
        policy.read(path)
    assert error.value.faults == (f"{path}: cannot be read: {why}",)


def test_what_a_person_is_asked_before(tmp_path: Path) -> None:
    """Each action that says so, and no other."""
    text = GOOD.replace("per_run: 2}", "per_run: 2, ask: true}")
    for now, asked in (
        (text, {"restart"}), (text.replace("stop]", "stop: {ask: true}]"), {"restart", "stop"}),
        (text.replace("ask: true", "ask: false"), set()),
    ):  # fmt: skip
        (tmp_path / "own.yml").write_text(now)
        rule = policy.read(tmp_path / "own.yml").rules["dead"]
        assert rule.asked == asked
        assert rule.restarts["restart"] == policy.Budget(1, 2)
        assert rule.end == "stop"


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    """Not one after the other, each after another night."""
    bad = GOOD.replace("version: 1", "version: 7").replace("for: 1m", "for: x").replace(", stop]", "]")
    assert len(faults(tmp_path, bad)) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"), ("[", "not YAML"), ("a: 1", "'a' is unknown"), ("- 1", "expected a "), ("1", "expected a "),
        ("version: 1\nrestarts: {per_hour: 1, per_run: 1}", "nothing would ever be done"),
        ("\x00", "not YAML"), ("&a {b: *a}", "unknown"),
    ],
)  # fmt: skip
def test_what_is_no_policy(tmp_path: Path, text: str, said: str) -> None:
    """A fault, and never a traceback."""
    assert any(said in fault for fault in faults(tmp_path, text))


def test_a_bad_policy_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, a line for each fault, and the command has not run."""
    path = tmp_path / "policy.yml"
    path.write_text("version: 2\n")
    assert main(["supervise", "--policy", str(path), "--", "touch", str(tmp_path / "ran")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(line.startswith(f"tachograph supervise: {path}:1: ") for line in said)
    assert not (tmp_path / "ran").exists()
    assert main(["supervise", "--policy", str(tmp_path / "none.yml"), "--", "true"]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_the_policy_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The default one, to begin an own one from; an own one is checked before."""
    assert main(["supervise", "--show-policy"]) == 0
    shown = capsys.readouterr().out
    (tmp_path / "own.yml").write_text(shown)
    assert policy.read(tmp_path / "own.yml") == policy.read(policy.DEFAULT)
    assert main(["supervise", "--show-policy", "--policy", str(tmp_path / "own.yml")]) == 0
    assert capsys.readouterr().out == shown
