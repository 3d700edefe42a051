"""Nothing is done within a maintenance silence: of a real Alertmanager, and without one nobody knows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tachograph.silence.alertmanager import Silence, SilenceMatcher, Silences
from tachograph.silence.command import main
from tachograph.supervise import silences
from tachograph.supervise.decision import SILENCE, WAIT, Hold
from tachograph.supervise.ledger import ASK
from tachograph.supervise.silences import MaintenanceSilences, covers, labels_of
from tachograph.supervise.triggers import EXITED, RunFinding, worst
from tachograph_lab.processes import free_port
from tests.supervise.conftest import RANKS, Supervised, until
from tests.supervise.world import World, dead, hung, rank, run

NOW = datetime(2026, 11, 29, tzinfo=timezone.utc)
AT_WORK = Hold(SILENCE, "a silence of ada covers it")


@pytest.fixture(scope="module")
def alertmanager(alertmanager_url: str) -> tuple[str, Callable[..., None]]:
    """The address of a real one, and how to silence something there by a command."""

    def silence(*words: str) -> None:
        options = ("--for", "20m", "--why", "new switch", "--by", "ada", "--alertmanager", alertmanager_url)
        assert main([*words, *options]) == 0

    return alertmanager_url, silence


def found(seen: Any) -> RunFinding:
    finding = worst(seen)
    assert finding is not None
    return finding


def silence_of(**matchers: str) -> Silence:
    """Return a silence with these matchers; `=~` or `!=` may come before a value."""
    made = [
        SilenceMatcher(name, text.lstrip("=~!"), regex=text.startswith(("=~", "!~")), equal=not text.startswith("!"))
        for name, text in matchers.items()
    ]
    return Silence(tuple(made), NOW, NOW + timedelta(hours=1), "ada", "new switch", state="active")


@pytest.mark.parametrize(
    ("matchers", "holds"),
    [
        ({"run": "r"}, True), ({"run": "s"}, False), ({"run": "=~r|s"}, True), ({"run": "=~s.*"}, False),
        ({"run": "!=s"}, True), ({"run": "!=r"}, False), ({"run": "!~r|s"}, False),
        ({"run": "r", "alertname": "RunHung"}, True), ({"run": "r", "alertname": "LossNotFinite"}, False),
        ({"run": "r", "alertname": "NicLinkDown"}, True),
        ({"alertname": "=~RankDead|RunHung"}, True), ({"rank": "1"}, True), ({"rank": "0"}, False),
        ({"instance": "node-7"}, True), ({"instance": "node-7:10024"}, True), ({"instance": "node-7:9835"}, True),
        ({"instance": "node-8"}, False), ({"instance": "=~node-7.*"}, True), ({"node": "node-7"}, True),
        ({"component": "tachograph"}, True), ({"component": "database"}, False),
        ({"cluster": "a"}, True), ({"run": "s", "cluster": "a"}, False), ({"severity": "critical", "run": "r"}, True),
        ({"run": "=~("}, True), ({"run": "=~(s+)+$"}, True), ({"run": "=~.*s.*s.*s.*s"}, True),
        ({"run": "=~a{99999999999999999999}"}, True),
    ],
)  # fmt: skip
def test_what_a_silence_covers(matchers: dict[str, str], holds: bool) -> None:
    """As its alerts would be matched; what is not known here, or cannot be tried safely, may be so."""
    seen = hung(node="node-7")
    assert covers(silence_of(**matchers), labels_of(found(seen), seen)) is holds


def test_the_page_that_explains_a_broken_gpu_is_one_of_it() -> None:
    """Where the driver recommends a reset after a memory error, people get GpuEccUncorrected alone."""
    broken = rank(1, uuid="GPU-1", has_gpu_trouble=True)
    seen = run(rank(0), broken, gpu_trouble=("GPU 1 the driver recommends: gpu reset",))
    labels = labels_of(found(seen), seen)
    assert covers(silence_of(run="r", alertname="GpuEccUncorrected"), labels)
    assert not covers(silence_of(run="r", alertname="GpuRowRemapPending"), labels)


def test_a_command_that_failed_has_no_alert_of_its_own() -> None:
    """A silence of any alert of the run is one of it."""
    exited = RunFinding(EXITED, (), "status 1", 10, "", "It ended.")
    assert covers(silence_of(run="r", alertname="RankDead"), labels_of(exited, run()))
    assert not covers(silence_of(run="s", alertname="RankDead"), labels_of(exited, run()))


@pytest.mark.e2e
def test_a_real_silence_holds_back(alertmanager: tuple[str, Callable[..., None]]) -> None:
    """That of `tachograph silence`, from when it is made until it has ended; that of another run does not."""
    url, silence = alertmanager
    silence("other")
    silence("r-planned", "--planned-restart")
    for name, seen, holds in (
        ("r", hung(), False), ("other", hung(name="other"), True), ("r-planned", dead(name="r-planned"), True),
        ("r-planned", run(rank(0, is_lost=True), name="r-planned"), False),
    ):  # fmt: skip
        hold = MaintenanceSilences(url, pytest.fail).hold(found(seen), seen, True)
        assert (hold is not None) is holds, name
    assert hold is None
    now, said = [0.0], []
    asked = MaintenanceSilences(url, said.append, lambda: now[0])
    seen = hung(name="later")
    assert asked.hold(found(seen), seen, True) is None
    silence("later")
    assert asked.hold(found(seen), seen, True) is None, "an answer counts for ten seconds"
    now[0] = 11.0
    hold = asked.hold(found(seen), seen, True)
    assert hold is not None
    assert hold.guard == SILENCE
    assert hold.why.startswith("a silence of ada covers it until ")
    assert ": new switch (" in hold.why
    for one in Silences(url).current():
        Silences(url).expire(one.id)
    now[0] = 22.0
    assert asked.hold(found(seen), seen, True) is None
    assert said == []


@pytest.mark.e2e
def test_a_hang_in_a_silence_is_left_alone(
    alertmanager: tuple[str, Callable[..., None]], supervised: Supervised
) -> None:
    """A whole supervisor: a rank that dies within the silence of its run is not restarted, and the journal says why."""
    url, silence = alertmanager
    silence(supervised.name)
    command = [sys.executable, RANKS, supervised.folder, "--fail", "die@25"]
    status, said = supervised.end(supervised.start("act", command, "--alertmanager", url))
    assert status == 1
    assert "nothing is done about this, as a silence of ada covers it until" in said
    assert supervised.decisions()[-1] == ("held", "dead", SILENCE)


def test_nobody_answers(tmp_path: Path) -> None:
    """It is said once; what is found is left alone, as whether somebody is at it is not known, and noted once."""
    said: list[str] = []
    asked = MaintenanceSilences(f"http://127.0.0.1:{free_port()}", said.append)
    until(lambda: said)
    world = World(tmp_path, lambda *_: hung(), ends=[(0, 60.0)], silenced=asked.hold)
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert world.decisions() == [("held", "hung", SILENCE)]
    assert "whether a silence covers it is not known: no Alertmanager at http://127.0.0.1:" in world.said[0]
    assert len(said) == 1
    assert said[0].endswith("Nothing is done about what is found until it answers")


def test_an_answer_does_not_count_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute after the last one nothing is known; until the first one comes nothing is done, or said."""
    now, answer = [0.0], threading.Event()

    def current(_: Silences) -> list[Silence]:
        assert answer.wait(30.0)
        if now[0] > 5.0:
            raise RuntimeError("it is away")
        return []

    monkeypatch.setattr(Silences, "current", current)
    said: list[str] = []
    asked = MaintenanceSilences("http://localhost:1", said.append, lambda: now[0])
    finding, seen = found(hung()), hung()
    assert asked.hold(finding, seen, False) == Hold(WAIT, "Alertmanager is being asked for silences")
    monkeypatch.setattr(silences, "WAIT_SECONDS", 0.01)
    assert asked.hold(finding, seen, True) == Hold(
        SILENCE, "whether a silence covers it is not known: it has not answered in time"
    )
    now[0] = 16.0
    assert asked.hold(finding, seen, False) == Hold(
        SILENCE, "whether a silence covers it is not known: it has not answered in time"
    )
    now[0] = 0.0
    answer.set()
    until(lambda: asked.hold(finding, seen, False) is None)
    now[0] = 50.0
    assert asked.hold(finding, seen, True) is None
    until(lambda: said)
    now[0] = 61.0
    assert asked.hold(finding, seen, True) == Hold(SILENCE, "whether a silence covers it is not known: it is away")
    assert len(said) == 1


@pytest.mark.parametrize("mode", ["act", "shadow", ASK])
def test_what_would_be_done_waits_for_the_end_of_a_silence(tmp_path: Path, mode: str) -> None:
    """In every mode; once it is over, what still holds is acted upon."""
    world = World(tmp_path, lambda attempt, _: run() if attempt else hung(), ends=[(0, 90.0), (0, 9.0)], mode=mode)
    world.silenced = lambda *_: AT_WORK if world.now < 60.0 else None
    world.supervise()
    assert world.decisions()[0] == ("held", "hung", SILENCE)
    assert [action for *_, action in world.decisions()[1:]] == ["restart"]
    if mode == "act":
        assert world.began >= 60.0


def test_a_silence_that_is_made_meanwhile_counts(tmp_path: Path) -> None:
    """While the evidence is kept; and while a restart waits for its cool-down."""
    world = World(tmp_path / "kept", lambda *_: hung(), ends=[(0, 90.0)])
    world.silenced = lambda *_: AT_WORK if "kept" in world.did else None
    assert world.supervise() == 0
    assert world.did == ["started", "kept"]
    assert world.decisions()[-1] == ("held", "hung", SILENCE)
    world = World(tmp_path / "cool", lambda attempt, _: dead(step=10 + attempt), ends=[(1, 5.0), (1, 0.5)])
    world.silenced = lambda *_: AT_WORK if len(world.children) > 1 and world.now - world.began > 5.0 else None
    assert world.supervise() == 1
    assert world.did.count("started") == 2
    assert world.decisions()[-1] == ("held", "dead", SILENCE)
