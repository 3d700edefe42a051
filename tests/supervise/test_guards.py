"""The supervisor's guards, each with the day on which it is needed, and what is done where none holds it back."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tachograph.supervise import journal
from tachograph.supervise.journal import NAME
from tachograph.supervise.journal_commands import confirm as answer_yes
from tachograph.supervise.journal_commands import open_question
from tachograph.supervise.ledger import ACT, ASK, SHADOW
from tachograph.supervise.run_seen import CheckpointSeen, RunSeen, Unknown
from tachograph.supervise.supervisor import STATUS_STOPPED, Supervisor
from tests.supervise.world import BEGIN, World, dead, hung, rank, run

GONE = Unknown("the exporter does not answer")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_dead_rank_is_restarted_with_the_evidence_first(folder: Path) -> None:
    """The command has ended with it; the next attempt knows why it was started, and its end is the run's."""
    world = World(folder, lambda attempt, _: run() if attempt else dead(), ends=[(1, 3.0), (0, 30.0)])
    assert world.supervise() == 0
    assert world.did == ["started", "kept", "started"]
    assert world.decisions() == [("act", "dead", "restart")]
    assert [plan["TACHOGRAPH_PLAN_REASON"] for plan in world.plans] == ["", "dead"]
    assert json.loads(Path(world.plans[1]["TACHOGRAPH_PLAN"]).read_text()) == {
        "version": 1, "run": "r", "attempt": 1, "action": "restart", "reason": "dead", "step": None,
        "checkpoint": "", "skip": [], "rate": 1.0, "clipping": 1.0,
    }  # fmt: skip


def test_a_hang_is_ended_and_restarted(folder: Path) -> None:
    """Once it has lasted for as long as the policy asks: the evidence is kept before anything is ended."""
    world = World(folder, lambda attempt, _: run() if attempt else hung(), ends=[(None, 0), (0, 30.0)])
    assert world.supervise() == 0
    assert world.did == ["started", "kept", "ended", "started"]
    assert 10.0 <= world.began <= 12.0


@pytest.mark.parametrize("state", [hung, dead])
def test_shadow_mode_does_nothing(folder: Path, state: object) -> None:
    """It writes what it would do, once, and the training is as it would be without us."""
    world = World(folder, lambda *_: state(), ends=[(1, 60.0)], mode=SHADOW)  # type: ignore[operator]
    assert world.supervise() == 1
    assert world.did == ["started"]
    assert [one for one in world.decisions() if one[0] != "would"] == []
    assert world.decisions()[0][2] == "restart"
    assert len([said for said in world.said if said.startswith("would restart")]) == len(world.decisions())


def test_silence_is_no_reason(folder: Path) -> None:
    """Unknown is not gone: an exporter that is away, for hours, ends nothing; it is said once, and that it is back."""
    world = World(folder, lambda _, seconds: run() if seconds > 900 else GONE, ends=[(0, 1000.0)])
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert world.decisions() == []
    assert [said for said in world.said if "nothing has been known" in said] != []
    assert world.said[-1] == "the exporter shows run r again"


def test_a_failure_that_nobody_saw_is_left_alone(folder: Path) -> None:
    """The command failed, and the exporter knows nothing of its ranks: its status is ours."""
    world = World(folder, lambda *_: GONE, ends=[(7, 60.0)])
    assert world.supervise() == 7
    assert world.did == ["started"]
    assert "is not restarted, because nothing is known of its ranks" in world.said[-1]


def test_silence_between_two_findings_begins_the_wait_again(folder: Path) -> None:
    """A finding must hold without a gap for as long as the policy asks."""
    world = World(
        folder, lambda _, seconds: hung() if seconds % 9 < 6 else GONE, ends=[(0, 100.0)],
    )  # fmt: skip
    assert world.supervise() == 0
    assert world.did == ["started"]


def test_an_exporter_that_stands_still_is_silent(folder: Path) -> None:
    """The same answer again, with the same time, is no news of a hang."""
    world = World(folder, lambda *_: hung(), ends=[(0, 100.0)])
    world.look = lambda _: hung(time=5.0)  # type: ignore[method-assign]
    assert world.supervise() == 0
    assert world.did == ["started"]


def saves(seconds: float, **facts: object) -> RunSeen:
    saving = rank(0, phase="checkpoint", phase_seconds=seconds)
    return replace(hung(**facts), ranks=(saving, rank(1, phase="collective", phase_seconds=seconds)))  # type: ignore[arg-type]


def test_a_save_of_eleven_minutes_is_left_alone(folder: Path) -> None:
    """The exporter calls it a hang after five; nobody may end it within the policy's half an hour."""
    world = World(folder, lambda _, seconds: run() if seconds > 660 else saves(seconds), ends=[(0, 700.0)])
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert world.decisions() == [("held", "hung", "excuse")]
    assert "rank 0 has been in phase checkpoint for" in world.said[0]


def test_an_excuse_has_an_end(folder: Path) -> None:
    """A save that never ends is a hang after all."""
    world = World(
        folder, lambda attempt, seconds: run() if attempt else saves(seconds), ends=[(None, 0), (0, 5.0)], last=2500.0
    )
    assert world.supervise() == 0
    assert world.did == ["started", "kept", "ended", "started"]


def test_a_run_that_goes_on_while_evidence_is_kept_is_left_alone(folder: Path) -> None:
    """That takes up to 20 s: what was decided on may be gone. The next supervisor does not catch up on it either."""
    world = World(folder, lambda *_: run() if "kept" in world.did else hung(), ends=[(0, 100.0)])
    assert world.supervise() == 0
    assert world.did == ["started", "kept"]
    assert world.decisions() == [("act", "hung", "restart"), ("held", "hung", "gone")]
    assert [one for one in world.entries if one["kind"] == "intent" and one["action"] == "restart"] == []


def test_a_signal_while_evidence_is_kept_ends_the_run(folder: Path) -> None:
    """A preemption in that moment is passed on, and no other attempt is started."""
    world = World(folder, lambda *_: hung(), ends=[(1, 100.0)])
    keep, wait = world.keep, world.wait

    def keep_long(number: str, seen: RunSeen) -> str:
        signalled = [] if world.children[0].told else [signal.SIGTERM]
        world.wait = lambda *given: [*wait(*given), *(signalled.pop() for _ in signalled[:])]  # type: ignore[method-assign]
        return keep(number, seen)

    world.keep = keep_long  # type: ignore[method-assign]
    assert world.supervise() == 1
    assert world.children[0].told == [signal.SIGTERM]
    assert world.did == ["started", "kept"]


def test_a_signal_while_the_training_is_ended_starts_no_other(folder: Path) -> None:
    """Between the end of one attempt and the start of the next: the supervisor ends as by that signal."""
    world = World(folder, lambda *_: hung())
    wait = world.wait
    world.wait = lambda *given: [signal.SIGTERM] if "ended" in world.did else wait(*given)  # type: ignore[method-assign]
    assert world.supervise() == -signal.SIGTERM
    assert world.did == ["started", "kept", "ended"]


def test_ranks_that_the_command_has_not_started_are_not_its_own(folder: Path) -> None:
    """Another run of the same name and user hangs: this one is left alone."""
    foreign = hung()
    foreign = replace(foreign, ranks=tuple(replace(one, pid=str(os.getppid())) for one in foreign.ranks))
    world = World(folder, lambda *_: foreign, ends=[(0, 300.0)])
    world.on_wait = lambda world: vars(world.children[-1]).update(pid=os.getpid())
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert "which this command has not started" in world.said[0]


def test_a_debugger_is_left_alone(folder: Path) -> None:
    """A rank that a debugger has stopped is frozen, and a person is working on it; one stopped otherwise is not."""
    traced = run(rank(0), rank(1, state="frozen", process="t (tracing stop)"), state="frozen")
    world = World(folder, lambda *_: traced, ends=[(0, 300.0)])
    assert world.supervise() == 0
    assert world.decisions() == [("held", "frozen", "excuse")]


def test_ranks_that_freeze_together_are_left_alone(folder: Path) -> None:
    """Storage, a paused node: one of several is a rank's own matter, all of them are not."""
    stopped = {"state": "frozen", "process": "D (disk sleep)"}
    world = World(folder, lambda *_: run(rank(0, **stopped), rank(1, **stopped)), ends=[(0, 300.0)])
    assert world.supervise() == 0
    assert world.decisions() == [("held", "frozen", "together")]
    world = World(folder, lambda attempt, _: run() if attempt else run(rank(0, **stopped)), ends=[(None, 0), (0, 9.0)])
    assert world.supervise() == 0
    assert world.decisions()[-1] == ("act", "frozen", "restart")


def test_a_stopped_rank_is_not_saving(folder: Path) -> None:
    """SIGSTOP within a save: a stopped process writes nothing, so the phase excuses nobody."""
    stopped = rank(1, state="frozen", process="T (stopped)", phase="checkpoint", phase_seconds=20.0)
    world = World(folder, lambda attempt, _: run() if attempt else run(rank(0), stopped), ends=[(None, 0), (0, 5.0)])
    assert world.supervise() == 0
    assert world.did == ["started", "kept", "ended", "started"]


def test_a_hang_with_steps_contradicts_itself(folder: Path) -> None:
    """Both of the exporter: the run hangs, and it makes steps. Nothing is done."""
    world = World(folder, lambda _, seconds: hung(step=int(seconds) + 1), ends=[(0, 300.0)])
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert ("held", "hung", "contradiction") in world.decisions()


def test_a_dead_rank_whose_process_lives_contradicts_itself(folder: Path) -> None:
    """The exporter has lost it, and the kernel has not: 672 false deaths of one abort began like this."""
    mine = str(os.getpid())
    alive, lost = run(rank(0), rank(1, pid=mine)), dead()
    world = World(folder, lambda _, seconds: lost if seconds > 20 else alive, ends=[(0, 300.0)])

    def with_a_process(world: World) -> None:
        world.children[-1].pid = os.getpid()

    world.on_wait = with_a_process
    assert world.supervise() == 0
    assert world.decisions() == [("held", "dead", "contradiction")]
    assert "rank 1 died, and its process is there" in world.said[0]


def test_a_failure_after_the_end_of_the_training_is_left_alone(folder: Path) -> None:
    """All ranks have finished, and what came after it, an upload, failed: a restart would train again."""
    over = run(rank(0, state="finished", ended_seconds=5.0, end_reason="finished"), state="finished")
    world = World(folder, lambda *_: over, ends=[(1, 30.0)])
    assert world.supervise() == 1
    assert world.did == ["started"]
    assert world.decisions() == [("held", "exited", "contradiction")]


def test_the_same_failure_at_the_same_step_stops(folder: Path) -> None:
    """Out of memory at step 48 twice is the program's own: a third time costs an hour and tells nothing."""
    world = World(folder, lambda *_: dead(step=48), ends=[(1, 30.0)] * 9)
    assert world.supervise() == 1
    assert world.did == ["started", "kept", "started", "kept"]
    assert world.decisions() == [("act", "dead", "restart"), ("act", "dead", "stop")]


def test_the_same_message_stops_at_another_step_too(folder: Path) -> None:
    """An exception at the same line; a timeout of collectives is raised at the same line whoever is late."""

    def failed(attempt: int, reason: str) -> RunSeen:
        end = {"ended_seconds": 1.0, "step": 10 * attempt + 10, "message": f"{reason}: no such file"}
        return run(rank(0, state="failed", end_reason=reason, **end), state="failed")

    world = World(folder, lambda attempt, _: failed(attempt, "data"), ends=[(1, 30.0)] * 9)
    assert world.supervise() == 1
    assert [action for *_, action in world.decisions()] == ["restart", "stop"]
    world = World(folder / "2", lambda attempt, _: failed(attempt, "collective"), ends=[(1, 30.0)] * 9)
    assert world.supervise() == 1
    assert [action for *_, action in world.decisions()] == ["restart", "restart", "stop"]


@pytest.mark.parametrize(
    ("end", "status", "first"),
    [
        ("exit code 17", 1, "stop"), ("exit code 17 after RuntimeError: no", 1, "stop"), ("", 17, "stop"),
        ("exit code 16", 1, "restart"), ("exit code 170", 1, "restart"), ("", 16, "restart"), ("17", 1, "restart"),
    ],
)  # fmt: skip
def test_a_job_that_says_that_it_is_not_to_go_on(folder: Path, end: str, status: int, first: str) -> None:
    """By an exit code of a rank or of the command, which Megatron-LM has for a result that failed its validation."""
    fact = {"state": "failed", "end_reason": "exit_code", "message": end, "ended_seconds": 1.0}
    seen = run(rank(0, **(fact if end else {"ended_seconds": 1.0, "state": "left"})), state="failed")
    world = World(folder, lambda _, at: seen if at > 20 else run(), ends=[(status, 30.0), (0, 40.0)])
    world.supervise()
    assert next(action for *_, action in world.decisions()) == first


def test_an_attempt_without_a_new_step_counts_twice(folder: Path) -> None:
    """With a budget of 3 an hour: one restart after a gain, and none after an attempt that got no further."""
    steps = [50, 49, 48, 47]
    world = World(folder, lambda attempt, _: dead(step=steps[attempt]), ends=[(1, 30.0)] * 4)
    assert world.supervise() == 1
    assert [one["cost"] for one in world.entries if one["kind"] == "intent" and one["action"] == "restart"] == [1, 2]
    assert world.decisions()[-1] == ("act", "dead", "stop")
    assert "this attempt made no new step, so the restart counts twice" in world.said[-1]


def test_the_budget_outlives_its_supervisor(folder: Path) -> None:
    """What was spent is in the journal: a supervisor that is started again in its place has no more."""
    world = World(folder, lambda attempt, _: dead(step=10 * attempt + 10), ends=[(1, 30.0)] * 9)
    assert world.supervise() == 1
    assert [action for *_, action in world.decisions()] == ["restart", "restart", "restart", "stop"]
    assert "the budget of all restarts is used up (3 of 3 in the last hour" in world.said[-1]
    world = World(folder, lambda *_: dead(step=99), ends=[(1, 30.0)])
    assert world.supervise() == 1
    assert world.decisions()[-1] == ("act", "dead", "stop")
    assert world.did == ["started", "kept"]


def test_a_finished_run_begins_with_a_full_budget(folder: Path) -> None:
    """Exit 0 ends the past."""
    for _ in range(4):
        world = World(folder, lambda attempt, _: run() if attempt else dead(), ends=[(1, 3.0), (0, 30.0)])
        assert world.supervise() == 0


@pytest.mark.parametrize("status", [-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 130, -signal.SIGHUP])
def test_an_end_from_outside_is_left_alone(folder: Path, status: int) -> None:
    """Preempted, or ended by a person: its status is ours, and no part of the budget is spent."""
    world = World(folder, lambda *_: dead(), ends=[(status, 30.0)])
    assert world.supervise() == status
    assert world.did == ["started"]
    assert [one["how"] for one in world.entries if one["kind"] == "ended"] == ["external"]


def test_a_signal_to_the_supervisor_is_passed_on_and_ends_the_run(folder: Path) -> None:
    """Whatever the ranks look like afterwards; while the training takes its time to end, nothing is done."""
    world = World(folder, lambda *_: hung(), ends=[(1, 100.0)], signals={5.0: signal.SIGTERM})
    assert world.supervise() == 1
    assert world.children[0].told == [signal.SIGTERM]
    assert world.did == ["started"]


def test_ranks_that_were_asked_to_end_are_no_failure(folder: Path) -> None:
    """A launcher that was asked to end exits with 1, after its ranks: the exporter knows that they were asked."""
    ends = {"state": "failed", "end_reason": "terminated", "ended_seconds": 1.0}
    world = World(folder, lambda *_: run(rank(0, **ends), rank(1, **ends), state="failed"), ends=[(1, 30.0)])
    assert world.supervise() == 1
    assert world.did == ["started"]
    assert world.decisions() == []


def test_a_launcher_that_was_killed_is_restarted(folder: Path) -> None:
    """Its ranks were fine, and were asked to end after it, by us: neither a preemption nor a death of theirs."""
    ends = {"state": "failed", "end_reason": "terminated", "ended_seconds": 1.0}
    ended = run(rank(0, **ends), rank(1, **ends), state="failed")
    world = World(
        folder, lambda attempt, seconds: run() if attempt or seconds < 30 else ended, ends=[(-9, 30.0), (0, 9.0)]
    )
    assert world.supervise() == 0
    assert world.decisions() == [("act", "exited", "restart")]
    assert "ended with signal SIGKILL, and no rank failed before it" in world.said[0]


def test_a_restart_waits_for_its_cool_down(folder: Path) -> None:
    """A second failure within seconds of a restart: the next attempt begins once the policy's time is over."""
    world = World(
        folder, lambda attempt, _: run() if attempt == 2 else dead(step=10 + attempt),
        ends=[(1, 5.0), (1, 0.5), (0, 5.0)],
    )  # fmt: skip
    begins: list[float] = []
    start = world.start
    world.start = lambda environment: (begins.append(world.now), start(environment))[1]  # type: ignore[method-assign]
    assert world.supervise() == 0
    assert begins[2] - begins[1] >= 10.0


def test_a_launcher_that_restarts_its_ranks_is_let(folder: Path) -> None:
    """A dead rank while the command runs is torchrun's for a minute."""
    world = World(folder, lambda _, seconds: dead() if 10 < seconds < 60 else run(), ends=[(0, 200.0)])
    assert world.supervise() == 0
    assert world.did == ["started"]


def lost(step: int, *saved: int) -> RunSeen:
    return run(rank(0, is_lost=True, nonfinite_step=step, step=step + 5), saved=saved)


def test_a_lost_loss_goes_back_to_a_checkpoint_from_before(folder: Path) -> None:
    """The newest one has the NaN in it: the plan names the last from before."""

    def look(attempt: int, seconds: float) -> RunSeen:
        if attempt:
            return run()
        return run(saved=[40]) if seconds < 20 else lost(47, *[40, 50][: 1 if seconds < 30 else 2])

    world = World(folder, look, ends=[(None, 0), (0, 30.0)])
    assert world.supervise() == 0
    assert world.decisions() == [("act", "loss_not_finite", "restart_from_checkpoint")]
    assert world.plans[1]["TACHOGRAPH_PLAN_STEP"] == "40"


def test_without_a_good_checkpoint_a_person_is_asked(folder: Path) -> None:
    """Also in act mode: nothing is restarted into what is known to be bad."""
    world = World(folder, lambda *_: lost(47, 50), ends=[(0, 100.0)])
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert world.decisions() == [("asked", "loss_not_finite", "restart_from_checkpoint")]
    assert "no checkpoint can be restored: that of step 50: it was saved once the loss had spiked" in world.said[0]
    assert "with: tachograph supervise confirm" in world.said[0]


def test_a_lost_run_that_never_saved_is_stopped(folder: Path) -> None:
    """There is nothing to go back to: the next of the ladder."""
    world = World(folder, lambda *_: lost(47))
    assert world.supervise() == STATUS_STOPPED
    assert world.did == ["started", "kept", "ended"]
    assert "no checkpoint is known" in world.said[-1]


def test_checkpoints_of_a_run_of_the_same_name_are_none_of_this_one(folder: Path) -> None:
    """The exporter shows for a while what was saved before the first attempt began."""
    old = tuple(replace(one, time=BEGIN - 60) for one in run(saved=[380, 400]).checkpoints)
    world = World(
        folder, lambda attempt, _: replace(run() if attempt else dead(), checkpoints=old), ends=[(1, 9.0), (0, 9.0)]
    )
    assert world.supervise() == 0
    assert world.plans[1]["TACHOGRAPH_PLAN_STEP"] == ""


def test_a_suspect_checkpoint_is_passed_over(folder: Path) -> None:
    """A rank dies while the loss spikes: the run begins from before the spike, and what came after that is forgotten.

    The exporter still shows the suspect one to the next attempt.
    """
    saved = [*run(saved=[20, 40]).checkpoints, CheckpointSeen(60, BEGIN + 60, "", is_suspect=True)]

    def look(attempt: int, _: float) -> RunSeen:
        return replace(run() if attempt == 2 else dead(50 + attempt), checkpoints=tuple(saved))

    world = World(folder, look, ends=[(1, 30.0), (1, 30.0), (0, 30.0)])
    assert world.supervise() == 0
    assert [plan["TACHOGRAPH_PLAN_STEP"] for plan in world.plans] == ["", "40", "40"]
    assert "(not that of step 60: it was saved once the loss had spiked or was not finite)" in world.said[0]
    assert "not that of step" not in " ".join(world.said[2:])


def test_a_broken_gpu_is_left_to_a_person(folder: Path) -> None:
    """It explains the death of its rank, and a restart on this node would meet it again."""
    broken = replace(dead(), gpu_trouble=("GPU 3 had Xid 79 (GPU has fallen off the bus): reset the GPU",))
    broken = replace(broken, ranks=tuple(replace(one, uuid="GPU-3") for one in broken.ranks))
    world = World(folder, lambda *_: broken, ends=[(1, 30.0)])
    assert world.supervise() == 1
    assert world.did == ["started", "kept"]
    assert world.decisions() == [("act", "gpu_fault", "leave")]


def test_a_trigger_without_a_rule_is_left_alone(folder: Path, tmp_path: Path) -> None:
    """A policy acts on what it names, and says of the rest that it does not."""
    own = tmp_path / "policy.yml"
    own.write_text("""
version: 1
restarts: {per_hour: 1, per_run: 1}
triggers:
  dead: {for: 0, cool_down: 1s, ladder: [restart: {per_hour: 1, per_run: 1}, stop]}
""")
    world = World(folder, lambda *_: hung(), ends=[(0, 60.0)], policy=own)
    assert world.supervise() == 0
    assert world.decisions() == [("held", "hung", "policy")]


def test_processes_that_cannot_be_killed_are_not_joined_by_others(folder: Path) -> None:
    """A rank that waits in the kernel holds its GPU: the run would be there twice."""
    world = World(folder, lambda *_: hung())
    world.on_wait = lambda world: vars(world.children[-1]).update(left=-1)
    assert world.supervise() == STATUS_STOPPED
    assert world.did == ["started", "kept", "ended"]
    assert "cannot be killed" in world.said[-1]


def test_a_person_confirms(folder: Path) -> None:
    """In ask mode nothing is done before that; the question names the command that confirms it."""

    def confirm(world: World) -> None:
        asked = [said.split() for said in world.said if "with: tachograph supervise confirm" in said]
        if asked and world.now > 60:
            number = asked[0][asked[0].index("confirm", asked[0].index("with:")) + 1]
            (folder / "confirmed").mkdir(exist_ok=True)
            (folder / "confirmed" / number).touch()

    world = World(folder, lambda attempt, _: run() if attempt else hung(), ends=[(None, 0), (0, 5.0)], mode=ASK)
    world.on_wait = confirm
    assert world.supervise() == 0
    assert world.did == ["started", "kept", "ended", "started"]
    assert world.began > 60
    assert f"--state {folder}" in world.said[0]


def test_a_question_is_withdrawn_with_its_finding(folder: Path) -> None:
    """A run that goes on is not ended by a late confirmation."""
    world = World(folder, lambda _, seconds: hung() if seconds < 60 else run(), ends=[(0, 200.0)], mode=ASK)
    world.on_wait = lambda world: None
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert "is withdrawn" in world.said[-1]


def test_nobody_confirms(folder: Path) -> None:
    """A command that has ended is waited for half an hour; then its status is ours."""
    world = World(folder, lambda *_: dead(), ends=[(1, 10.0)], mode=ASK, last=2000.0)
    assert world.supervise() == 1
    assert world.did == ["started"]
    assert [one["why"] for one in world.entries if one["kind"] == "ended"] == ["nobody confirmed it"]


def test_a_full_disk_ends_acting_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No intention on disk, no action: it is said once, and the training goes on in shadow mode."""
    world = World(folder, lambda *_: hung(), ends=[(0, 100.0)])
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if world.now > 5:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr("tachograph.supervise.journal.os.fsync", full)
    assert world.supervise() == 0
    assert world.did == ["started"]
    (said,) = [one for one in world.said if "No space left on device" in one]
    assert "shadow mode" in said
    assert (folder / NAME).read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(("faults", "decided"), [(2, ("act", "restart")), (3, ("would", "restart"))])
def test_a_fault_of_ours_lets_the_training_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, faults: int, decided: tuple[str, str]
) -> None:
    """Whatever raises: it is said, and looked at again; after the third time nothing is done any more."""
    world = World(folder, lambda attempt, _: run() if attempt else hung(), ends=[(0, 100.0), (0, 10.0)])
    act, left = Supervisor._act_on, [*range(faults)]

    def broken(*given: object) -> object:
        if left:
            left.pop()
            raise ZeroDivisionError("by us")
        return act(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(Supervisor, "_act_on", broken)
    assert world.supervise() == 0
    assert world.said[0].startswith("a fault of the supervisor's own: ZeroDivisionError: by us (test_guards.py:")
    assert [one["kind"] for one in world.entries].count("fault") == faults
    assert [(outcome, action) for outcome, _, action in world.decisions()] == [decided]
    assert ("ended" in world.did) is (faults < 3)


def test_every_message_is_a_sentence(folder: Path) -> None:
    """It names the run, and has neither a line break nor two full stops."""
    for number, look in enumerate((hung, dead, lambda: lost(47, 50))):
        for mode in (ACT, SHADOW, ASK):
            world = World(folder / f"{number}{mode}", lambda *_: look(), ends=[(1, 90.0)] * 5, mode=mode, last=4000.0)  # noqa: B023
            world.supervise()
            assert world.said
            for said in world.said:
                assert "\n" not in said
                assert ".." not in said
                assert "None" not in said


def test_a_failed_rank_of_somebody_else_is_not_its_own(folder: Path) -> None:
    """The exporter shows no process of a failed rank: it is ours if a rank of the run was seen below this command."""
    failed = run(*(rank(one, state="failed", end_reason="oom", ended_seconds=1.0) for one in (0, 1)), state="failed")
    world = World(folder, lambda *_: failed, ends=[(0, 300.0)])
    world.on_wait = lambda world: vars(world.children[-1]).update(pid=os.getpid())
    assert world.supervise() == 0
    assert world.did == ["started"]
    assert "has been seen to be a process of this command" in world.said[0]


def test_processes_that_outlive_a_command_are_not_joined_by_others(folder: Path) -> None:
    """The launcher has ended by itself, and a rank that waits in the kernel cannot be: the run would be there twice."""
    world = World(folder, lambda *_: dead(), ends=[(1, 3.0)])
    world.on_wait = lambda world: vars(world.children[-1]).update(left=-1)
    assert world.supervise() == 1
    assert world.did == ["started", "kept"]
    assert "cannot be killed" in world.said[-1]


@pytest.mark.parametrize("by", [-1e9, -3600.0, 3600.0, 1e9])
def test_a_clock_that_is_set_changes_no_budget_and_no_wait(folder: Path, by: float) -> None:
    """By an hour, or from the year in which a node without a clock begins: three restarts, each after its wait."""
    world = World(
        folder, lambda attempt, _: dead(attempt + 1), ends=[(1, 3.0)] * 9, set_clock={4.0: by, 40.0: by}, last=300.0
    )
    assert world.supervise() == 1
    assert world.did.count("started") == 4
    assert world.now < 60.0
    assert "the budget of" in world.entries[-1]["why"]


def test_a_restart_of_tomorrow_is_one_of_now(folder: Path) -> None:
    """The last supervisor's clock was ahead by a year: its restart counts, and its cool-down is over in a minute."""
    world = World(
        folder, lambda attempt, _: run() if attempt else hung(), ends=[(None, 0), (-15, 10.0)], set_clock={0.0: 3e7}
    )
    world.supervise()
    world = World(folder, lambda attempt, _: run() if attempt else hung(20), ends=[(None, 0), (0, 5.0)])
    assert world.supervise() == 0
    assert world.did == ["started", "kept", "ended", "started"]
    assert 60.0 <= world.began < 90.0


def test_a_supervisor_that_was_stopped_looks_again(folder: Path) -> None:
    """SIGSTOP for two minutes between two looks: what happened in between was not seen, so the wait begins anew."""

    def stopped(world: World) -> None:
        if 6.0 < world.now < 120.0:
            world.now += 120.0

    world = World(folder, lambda _, seconds: hung() if seconds < 130 else run(), ends=[(0, 200.0)])
    world.on_wait = stopped
    assert world.supervise() == 0
    assert world.did == ["started"]


def test_a_question_is_withdrawn_where_nothing_is_known(folder: Path) -> None:
    """An answer to it would be lost: the same finding, once it is seen again, is another question."""
    world = World(folder, lambda _, seconds: GONE if 30 < seconds < 40 else hung(), ends=[(0, 90.0)], mode=ASK)
    assert world.supervise() == 0
    numbers = [one["id"] for one in world.entries if one["kind"] == "decision"]
    assert len(numbers) == len(set(numbers)) == 2
    assert open_question(world.entries[:-1], numbers[0]) is None
    assert open_question(world.entries[:-1], numbers[1]) is not None
    assert any("is withdrawn: nothing is known of it now" in said for said in world.said)


@pytest.mark.parametrize("owner", [0, 4242, None])
def test_who_may_confirm(folder: Path, owner: int | None) -> None:
    """Root and the journal's owner: not another user who may write to the folder, nor a link to a file of theirs."""
    journal_owner = 1717

    def confirm(world: World) -> None:
        asked = [one["id"] for one in journal.read(folder / NAME) if one["kind"] == "decision"]
        for number in asked:
            answer = folder / "confirmed" / number
            if not os.path.lexists(answer):
                if owner is None:
                    answer.symlink_to(folder / NAME)
                else:
                    answer.touch()
                    os.chown(answer, owner, 0)

    folder.mkdir()
    (folder / NAME).touch()
    os.chown(folder / NAME, journal_owner, 0)
    world = World(folder, lambda attempt, _: run() if attempt else hung(), ends=[(0, 100.0), (0, 5.0)], mode=ASK)
    world.on_wait = confirm
    assert world.supervise() == 0
    assert world.did.count("ended") == (owner == 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may be another user")
@pytest.mark.parametrize("how", ["theirs", "open to others", "a link"])
def test_a_file_that_was_moved_confirms_nothing(folder: Path, how: str) -> None:
    """Another user who may write to the state's folder has files of the owner's at hand, but not their folder."""

    def confirm(world: World) -> None:
        for number in [one["id"] for one in journal.read(folder / NAME) if one["kind"] == "decision"]:
            place = folder / "confirmed"
            if place.is_dir() and not os.path.lexists(place / number):
                place.rename(folder / "away")
                theirs = place if how != "a link" else folder / "theirs"
                theirs.mkdir()
                if how == "a link":
                    place.symlink_to(theirs)
                theirs.chmod(0o777 if how == "open to others" else 0o755)
                (folder / "kept").write_text("of the owner's")
                (folder / "kept").rename(theirs / number)
                os.chown(theirs, 4242 if how == "theirs" else 0, 0)

    world = World(folder, lambda attempt, _: run() if attempt else hung(), ends=[(0, 100.0), (0, 5.0)], mode=ASK)
    world.on_wait = confirm
    assert world.supervise() == 0
    assert list(folder.glob("away"))
    assert world.did.count("ended") == 0


def test_an_answer_that_does_not_count_is_said_to_be_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To whoever confirms, as others may write to the folder of the answers."""
    statuses: list[int] = []

    def confirm(world: World) -> None:
        for one in journal.read(folder / NAME):
            if one["kind"] == "decision" and not statuses:
                (folder / "confirmed").chmod(0o777)
                statuses.append(answer_yes([one["id"], "--state", str(folder)]))

    world = World(folder, lambda attempt, _: run() if attempt else hung(), ends=[(0, 100.0), (0, 5.0)], mode=ASK)
    world.on_wait = confirm
    assert world.supervise() == 0
    assert (statuses, world.did.count("ended")) == ([1], 0)
    assert "confirmed is another user's or a link, or others may write to it" in capsys.readouterr().err


def test_a_question_that_is_not_on_disk_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can confirm it: the command's end is the run's, at once and not in half an hour."""
    world = World(folder, lambda *_: dead(), ends=[(1, 10.0)], mode=ASK, last=100.0)
    write = os.write

    def full(descriptor: int, line: bytes) -> int:
        if b'"asked"' in line:
            raise OSError(28, "No space left on device")
        return write(descriptor, line)

    monkeypatch.setattr("tachograph.supervise.journal.os.write", full)
    assert world.supervise() == 1
    assert world.now < 60.0
    assert world.did == ["started"]


def test_a_command_that_cannot_be_started_is_an_end(folder: Path) -> None:
    """No memory or no process is left to this user: a status, and no traceback."""
    world = World(folder, lambda *_: run())

    def start(_: object) -> object:
        raise OSError(11, "Resource temporarily unavailable")

    world.start = start  # type: ignore[method-assign, assignment]
    assert world.supervise() == 127
    assert "cannot be started: Resource temporarily unavailable" in world.said[-1]
    assert world.entries[-1]["kind"] == "ended"


def test_a_lock_that_is_held_for_a_minute_is_left_alone(folder: Path) -> None:
    """A rank that holds Python's lock while it writes JSON sends nothing, and goes on by itself."""
    locked = run(rank(0), rank(1, state="frozen", process="R (running)"), state="frozen")
    world = World(folder, lambda _, seconds: locked if 60 < seconds < 130 else run(), ends=[(0, 300.0)])
    assert world.supervise() == 0
    assert world.did == ["started"]
