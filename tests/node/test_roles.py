"""Several groups of ranks under one run's name, each with a rank 0: by a whole exporter, over its real socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.wire import MAX_NAME_BYTES, MAX_RUN_BYTES

ROLES = ("actor", "critic")


@pytest.fixture(scope="module")
def running(exporter_at: Callable[..., Any]) -> Any:
    return exporter_at("--no-gpu")


def greeted(running: Any, role: str, rank: int = 0, run: str = "ppo", **hello: object) -> Any:
    """A rank of a role that has said hello and one state, world of two."""
    speaker = running.speaker(run, rank, world_size=2, role=role, **hello)
    assert speaker.hello()["ok"] is True
    return speaker


def test_each_group_is_judged_for_itself(running: Any) -> None:
    """Ranks 0 and 1 of two roles are four ranks of two runs: none refused, none another, each at its step."""
    groups = {role: [greeted(running, role, rank) for rank in range(2)] for role in ROLES}
    for role, speakers in groups.items():
        for rank, speaker in enumerate(speakers):
            step = 70 if role == "critic" else 7
            speaker.state({"loss": float(rank), "steps_total": step}, step=step, progress_seconds=0.0)
    scrape = running.scrape()
    for role, step in (("actor", 7), ("critic", 70)):
        run = f"ppo/{role}"
        assert scrape.value("run_ranks", run=run, state="running") == 2
        assert scrape.value("run_world_size", run=run) == 2
        assert scrape.value("run_train_step", run=run) == step
        assert scrape.value("train_loss", run=run, rank=1) == 1.0
        assert scrape.value("run_role_info", run=run, role=role, of="ppo") == 1
    assert scrape.value("run_ranks", run="ppo", state="running") is None
    runs = {each["run"]: each for each in json.loads(running.ask("/api/node")[1])["runs"]}
    assert {"ppo/actor", "ppo/critic"} <= runs.keys()
    page = running.get("/")[2].decode()
    assert "ppo/actor" in page
    assert "ppo/critic" in page
    critic = groups["critic"]
    critic[1].bye(outcome="failed", category="oom", message="CUDA out of memory")
    running.eventually(lambda: running.scrape().value("run_ranks", run="ppo/critic", state="failed") == 1)
    assert running.scrape().value("run_ranks", run="ppo/actor", state="failed") is None


def test_ranks_of_different_roles_are_not_compared(table: Any, hand: Any) -> None:
    """A role's ranks wait for each other: its median is that of its own, whatever those of another role wait."""
    waits = {"actor": (0.01, 0.03), "critic": (0.5, 0.9)}
    links = {(role, rank): object() for role in waits for rank in range(2)}
    for (role, rank), link in links.items():
        table.greet(link, run="ppo", rank=rank, role=role, world_size=2)
    for second in range(1, 60):
        hand.turn(1.0, table.tick)
        for (role, rank), link in links.items():
            metrics = {
                "steps_total": second,
                "phase_seconds_total": {"forward": second * (1 - waits[role][rank])},
                "collective_wait_seconds_total": {"all_reduce": second * waits[role][rank]},
            }
            table.tell(link, second, 100.0 + second, step=second, progress_seconds=0.0, metrics=metrics)
    shown = table.shown()
    for role, seconds in waits.items():
        assert shown["run_waiting_ranks", f"ppo/{role}", ""] == 2
        assert shown["run_wait_seconds", f"ppo/{role}", ""] == pytest.approx(max(seconds)), "of two the longer one"


def test_a_run_without_roles_is_shown_as_ever(running: Any) -> None:
    """Not one more series or label: an empty role is none."""
    plain, empty = running.speaker("plain", 0, world_size=2), running.speaker("plain", 1, world_size=2, role="")
    for speaker in (plain, empty):
        answer = speaker.hello()
        assert answer == {"ok": True, "last_step": None}
        speaker.state({"loss": 1.0})
    scrape = running.scrape()
    shown = [(name, dict(labels)) for name, labels in scrape.values if dict(labels).get("run") == "plain"]
    assert shown
    assert [name for name, labels in shown if {"role", "of"} & labels.keys() or "role" in name] == []


def test_a_rank_of_a_role_is_held_by_one_process(running: Any) -> None:
    """The same role and rank twice is refused as without a role, with the name that is shown; other roles are free."""
    first = greeted(running, "critic", run="held", pid=1)
    second = running.speaker("held", 0, world_size=2, role="critic", pid=2)
    refusal = second.hello()
    assert refusal["ok"] is False
    assert "rank 0 of run held/critic is held by pid" in str(refusal["error"])
    assert second.answer() == {}, "closed"
    greeted(running, "actor", run="held", pid=2)
    same = running.speaker("held", 0, world_size=2, role="critic", pid=2, attempt=1)
    assert same.hello()["ok"] is True
    assert first.answer()["error"] == "another connection speaks for this rank now"
    other = running.speaker("held", 0, world_size=2, pid=3)
    assert other.hello()["ok"] is True, "the run itself, without a role, is yet another group"


LONGEST = MAX_RUN_BYTES - len("ppo/")


@pytest.mark.parametrize(
    "role",
    ["a/b", "/", "critic\n", "cri\ttic", "\x1b[31m", "r" * (MAX_NAME_BYTES + 1), "\N{GREEK SMALL LETTER OMEGA}" * 65],
)
def test_a_role_that_is_no_name_is_refused_with_the_rule(role: str, running: Any) -> None:
    """The hello is refused, and the connection goes on: nothing is recorded under a made-up name."""
    before = running.scrape().counted("frames_rejected", "invalid")
    speaker = running.speaker("bad", 0, role=role)
    refusal = speaker.hello()
    assert refusal["ok"] is False
    rule = f"role must be printable text of 1 to {MAX_NAME_BYTES} bytes in UTF-8 without a slash"
    assert rule in str(refusal["error"])
    scrape = running.scrape()
    assert scrape.counted("frames_rejected", "invalid") == before + 1
    assert {run for _, labels in scrape.values if (run := str(dict(labels).get("run"))).startswith("bad")} <= {"bad/ok"}
    assert speaker.hello(role="ok")["ok"] is True
    speaker.close()


@pytest.mark.parametrize("role", [7, None, ["critic"], True])
def test_a_role_that_is_no_text_is_refused(role: object, running: Any) -> None:
    """As any field of hello that is required to be text."""
    refusal = running.speaker("bad", 0, role=role).hello()
    assert refusal["ok"] is False
    assert "$.role" in str(refusal["error"])


@pytest.mark.parametrize(
    ("run", "role", "accepted"),
    [
        ("r" * MAX_NAME_BYTES, "c" * (MAX_RUN_BYTES - MAX_NAME_BYTES - 1), True),
        ("r" * MAX_NAME_BYTES, "c" * (MAX_RUN_BYTES - MAX_NAME_BYTES), False),
        ("r" * (MAX_RUN_BYTES - MAX_NAME_BYTES - 1), "c" * MAX_NAME_BYTES, True),
        ("ppo", "Kritiker\N{LATIN SMALL LETTER SHARP S} 2", True),
        ("ppo", "{run=\"x\"}", True),
    ],
)  # fmt: skip
def test_run_and_role_fit_into_a_label_together(run: str, role: str, accepted: bool, running: Any) -> None:
    """An owner's name still fits before both: Prometheus refuses a whole page for one label that is too long."""
    speaker = running.speaker(run, 0, role=role)
    assert speaker.hello()["ok"] is accepted
    assert (running.scrape().value("run_role_info", run=f"{run}/{role}", role=role, of=run) == 1) is accepted


def test_roles_outlive_the_exporter(exporter_at: Callable[..., Any], tmp_path: Path) -> None:
    """After a restart each role's rank continues from its own step, and one that had ended is shown again as it was."""
    running = exporter_at("--no-gpu", f"--state-file={tmp_path / 'state'}")
    who = {"pid": 77}
    for number, role in enumerate(ROLES):
        speaker = greeted(running, role, **who)
        speaker.state({"tokens_total": 10 * number}, step=100 + number)
    gone = greeted(running, "reward", **who)
    gone.state({}, step=5)
    gone.bye(outcome="failed", category="data", message="no samples")
    running.eventually(lambda: running.scrape().value("run_ranks", run="ppo/reward", state="failed") == 1)
    running.stop()
    running.start()
    for number, role in enumerate(ROLES):
        answer = running.speaker("ppo", 0, world_size=2, role=role, **who).hello()
        assert answer["last_step"] == 100 + number
    running.eventually(lambda: running.scrape().value("run_ranks", run="ppo/reward", state="failed") == 1)
    scrape = running.scrape()
    for role in (*ROLES, "reward"):
        assert scrape.value("run_role_info", run=f"ppo/{role}", role=role, of="ppo") == 1


def test_a_run_of_the_longest_name_ends_before_a_restart(exporter_at: Callable[..., Any], tmp_path: Path) -> None:
    """What is shown may be longer than what a frame may carry: its end is shown again all the same."""
    running = exporter_at("--no-gpu", "--run.owner=always", f"--state-file={tmp_path / 'state'}")
    run = "r" * MAX_NAME_BYTES
    speaker = running.speaker(run, 0)
    speaker.hello()
    speaker.state({}, step=5)
    speaker.bye(outcome="failed", category="data")
    running.eventually(lambda: running.scrape().value("run_ranks", run=f"root/{run}", state="failed") == 1)
    running.stop()
    running.start()
    running.eventually(lambda: running.scrape().value("run_ranks", run=f"root/{run}", state="failed") == 1)


def box(speaker: Any, text: str) -> None:
    speaker.send(type="box", id=1, part=0, parts=1, time=1.0, reason="no step for 41 s", text=json.dumps({"at": text}))


def test_boxes_of_equal_ranks_are_kept_apart(running: Any) -> None:
    """Each role's box is at its own address, with the slash and with what stands for it, and on a page of its own."""
    speakers = {role: greeted(running, role, run="boxes") for role in ROLES}
    for role, speaker in speakers.items():
        box(speaker, role)
    for role in ROLES:
        for name in (f"boxes%2F{role}", f"boxes/{role}"):
            address = f"/api/blackbox/{name}"
            left = running.eventually(lambda address=f"{address}/0/rank-0.json": got(running.ask(address)))
            assert left["at"] == role
            index = got(running.ask(address))
            assert index["run"] == f"boxes/{role}"
            assert [one["rank"] for one in index["boxes"]] == [0]
            assert running.ask(f"/blackbox/{name}")[0] == 200


def got(answer: tuple[int, bytes]) -> Any:
    return json.loads(answer[1]) if answer[0] == 200 else None


PROGRAM = """
import os, sys, time
from tachograph.client.recorder import Recorder
given = {"role": sys.argv[1]} if sys.argv[1] else {}
recorder = Recorder(run="by-client", rank=0, world_size=1, **given)
print(recorder.identity.role, flush=True)
for batch in range(3):
    with recorder.step(): pass
while os.getppid() != 1: time.sleep(0.05)
"""


def test_our_client_says_its_role(running: Any, tmp_path: Path) -> None:
    """By argument, by the variable, and never more than the hello needs; boxes of two roles are two files."""
    started = []
    try:
        for argument, variable in (("critic", None), ("", "actor"), ("", None)):
            environment = {**os.environ, "TACHOGRAPH_SOCKET": str(running.socket), "TACHOGRAPH_BLACKBOX": str(tmp_path)}
            environment |= {} if variable is None else {"TACHOGRAPH_ROLE": variable}
            program = [sys.executable, "-W", "ignore", "-c", PROGRAM, argument]
            started.append(
                subprocess.Popen(program, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
            )
        names = ("by-client/critic", "by-client/actor", "by-client")
        assert [one.stdout.readline().decode().strip() for one in started if one.stdout] == ["critic", "actor", ""]
        for name in names:
            running.eventually(lambda name=name: running.scrape().value("run_train_step", run=name) == 3)
        for one in started:
            one.send_signal(signal.SIGUSR2)
        files = {f"{folder}/0/rank-0.asked.json" for folder in ("by-client%2Fcritic", "by-client%2Factor", "by-client")}
        running.eventually(lambda: {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*.json")} == files)
        critic = json.loads((tmp_path / "by-client%2Fcritic/0/rank-0.asked.json").read_bytes())
        assert critic["run"] == "by-client/critic"
    finally:
        for one in started:
            one.kill()
            one.wait()
            if one.stdout:
                one.stdout.close()
