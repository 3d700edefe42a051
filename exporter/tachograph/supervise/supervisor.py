"""The supervisor of one run on one node: starts the training, looks what the exporter concludes, and acts by policy.

Whatever happens in here, the training goes on: a fault of ours, or a journal that cannot be written, ends acting and
nothing else.
"""

from __future__ import annotations

import secrets
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tachograph.humanize import age, count, listed
from tachograph.process_tree import below, started_at
from tachograph.supervise.decision import COOL_DOWN, GONE, WAIT, Decision, Situation, decide, held_back, not_before
from tachograph.supervise.findings import EXITED, NOT_FINITE, TOLD, RankSeen, RunFinding, RunSeen, Unknown, worst
from tachograph.supervise.journal import (
    ATTEMPT,
    BLIND,
    DECISION,
    ENDED,
    FAULT,
    INTENT,
    OUTCOME,
    STARTED,
    SUPERVISOR,
    Journal,
    identity,
)
from tachograph.supervise.memory import (
    ASKED,
    DECIDED,
    EXTERNAL,
    FAILED,
    FINISHED,
    HELD,
    LOST,
    STOPPED,
    WOULD,
    remember,
    take,
)
from tachograph.supervise.plan import AttemptPlan
from tachograph.supervise.policy import KEEP_EVIDENCE, LEAVE, NOTIFY, RESTARTS, STOP, Policy, Rule
from tachograph.supervise.signals import Signals
from tachograph.supervise.training import AttemptEnd

SHADOW, ASK, ACT = "shadow", "ask", "act"
MODES = (SHADOW, ASK, ACT)

POLL_SECONDS = 5.0
"""How often the exporter is asked: an answer costs both together 5 ms."""
PENDING_SECONDS = 1.0
"""The same while something is wrong, since each second of waiting costs one of every GPU."""
WAIT_SECONDS = 0.5
"""How often something is looked for that comes soon: a rank's end, a confirmation."""
SETTLE_SECONDS, UNSEEN_SECONDS = 5.0, 1.0
"""How long the exporter may take to show how ranks ended whose command has, and ranks that it never showed."""
BLIND_SECONDS = 120.0
"""After so long without findings that is said: a training takes as long to make its recorder."""
ASK_SECONDS = 1800.0
"""How long a confirmation is awaited for a training that has ended."""
CHECKPOINTS_KEPT = 8

STATUS_STOPPED = 3
"""The exit status for a training that the policy ended."""
SIGNALLED = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
NOT_DONE = {
    SHADOW: "nothing is done in shadow mode", ASK: "nobody confirmed it", ACT: "the journal cannot be written",
}  # fmt: skip
"""Why a decision was not carried out, by mode."""
UNKILLABLE = "processes are left that cannot be killed"
CONFIRMATIONS = "confirmed"
"""The folder in which `tachograph supervise confirm` leaves a file for each decision."""


class RunWatch(Protocol):
    """Where findings come from."""

    def begin(self) -> None:
        """Note that an attempt begins: what is shown now is of earlier ones."""

    def look(self, attempt_seconds: float) -> RunSeen | Unknown:
        """Return what is known of the run now."""


class RunningAttempt(Protocol):
    """An attempt of the training."""

    pid: int
    status: int | None

    def fileno(self) -> int:
        """Return what becomes readable when it ends."""

    def send_signal(self, number: int) -> None:
        """Pass a signal on."""

    def has_ended(self) -> bool:
        """Return whether the command has ended."""

    def end(self) -> AttemptEnd:
        """End it with all that it started."""

    def wait(self) -> AttemptEnd:
        """Return how it ended, once nothing of it is left."""


Start = Callable[[Mapping[str, str]], RunningAttempt]
Keep = Callable[[str, RunSeen], str]
"""Keeps the evidence of a decision; returns in words where it is, or why there is none."""


@dataclass
class OpenFinding:
    """A finding that holds: since when, what was said of it, and the decision that waits for a confirmation."""

    trigger: str
    since: float
    looks: int = 0
    said: set[str] = field(default_factory=set)
    number: str = ""
    decision: Decision | None = None
    is_done: bool = False


@dataclass(frozen=True)
class Clocks:
    """The time of the day, which the journal has, and the monotonic one."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class Supervisor:
    """Supervises one run until its command ends for good.

    `at` is called with a name before and after each side effect; tests end the process there.
    """

    def __init__(
        self,
        run: str,
        policy: Policy,
        mode: str,
        journal: Journal,
        source: RunWatch,
        *,
        start: Start,
        keep: Keep,
        say: Callable[[str], None],
        signals: Signals,
        clock: Clocks | None = None,
        at: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.mode = mode
        self._run, self._policy, self._journal, self._source = run, policy, journal, source
        self._start, self._keep, self._say, self._signals, self._at = start, keep, say, signals, at
        self._clock = clock or Clocks()
        self._memory = remember(journal.entries)
        self._best_before = self._memory.best_step
        self._told: list[int] = []
        self._seen: RunSeen | None = None
        self._processes: dict[int, tuple[int, str]] = {}
        self._checkpoints = list(self._memory.checkpoints)
        self._pending: OpenFinding | None = None
        self._blind_since: float | None = None
        self._is_blind = False
        self._began = 0.0
        self._is_unkillable = False
        self._command = 0

    def supervise(self, command: Sequence[str]) -> int:
        """Run the command until it ends for good; return its exit status, negative for a signal."""
        if (status := self._take_over()) is not None:
            return status
        self._write(SUPERVISOR, mode=self.mode, command=list(command), **identity())
        training = self._begin()
        next_look = self._clock.monotonic()
        while True:
            if training.has_ended():
                status = self._after(training)
                if status is not None:
                    return status
                if self._signalled_within(0.0):
                    return -self._told[0]
                training = self._begin()
            for number in self._signals.wait([training], next_look - self._clock.monotonic()):
                self._pass_on(training, number)
            if self._clock.monotonic() >= next_look and not training.has_ended():
                result = self.tick(training)
                is_waiting = self._pending is not None and not self._pending.is_done
                next_look = self._clock.monotonic() + (PENDING_SECONDS if is_waiting else POLL_SECONDS)
                if isinstance(result, int):
                    return result
                if result is not None:
                    if self._signalled_within(0.0):
                        return -self._told[0]
                    training = self._begin()

    def tick(self, training: RunningAttempt) -> int | Decision | None:
        """Look once while the command runs; return an exit status, or the restart for which the training was ended."""
        try:
            seen = self._look(training)
            self._note(seen)
            if isinstance(seen, Unknown) or self._told:
                self._pending = None
                return None
            return self._judge(training, seen)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._fault(error)
            return None

    # What came before this supervisor.

    def _take_over(self) -> int | None:
        """Close what an earlier supervisor left open; return an exit status if it was about to stop the run."""
        stopped = False
        for entry in list(self._memory.open.values()):
            action = entry["action"]
            if action == NOTIFY:
                self._say(f"{entry['text']} (said again: the last supervisor ended as it said this)")
            stopped |= action == STOP
            text = {
                NOTIFY: "said again by the next supervisor",
                KEEP_EVIDENCE: "not repeated: the training ended with its supervisor",
                STOP: "the training ended with its supervisor, and is not started again",
            }.get(action, "the training ended with its supervisor; the next attempt is started now")
            self._write(OUTCOME, id=entry["id"], action=action, ok=action != KEEP_EVIDENCE, text=text)
        if (decided := self._memory.decided) is not None:
            stopped |= decided["action"] == STOP
            names = ("id", "trigger", "action", "cost", "signature", "line", "resume_step")
            self._write(INTENT, **{name: decided[name] for name in names})
            text = "decided by the last supervisor, and the training ended with it"
            self._write(OUTCOME, id=decided["id"], action=decided["action"], ok=True, text=text)
        if self._memory.runs:
            self._write(ENDED, how=LOST, status=None, step=None, why="its supervisor ended, and the training with it")
        if not stopped:
            return None
        self._say(
            f"run {self._run} was being stopped by policy when its last supervisor ended: the training has ended with "
            "it, and is not started. To start it all the same, give the command again"
        )
        return STATUS_STOPPED

    # An attempt's beginning and end.

    def _begin(self) -> RunningAttempt:
        """Start the next attempt."""
        memory = self._memory
        due = memory.due
        plan = AttemptPlan(
            self._run,
            memory.attempts,
            due["action"] if due else "",
            due["trigger"] if due else "",
            due["resume_step"] if due else None,
        )
        self._best_before, self._pending, self._seen = memory.best_step, None, None
        self._processes, self._told = {}, []
        self._blind_since, self._is_blind = None, False
        self._source.begin()
        self._write(ATTEMPT, attempt=plan.attempt, action=plan.action, reason=plan.reason, resume_step=plan.step)
        self._at("before start")
        self._began = self._clock.monotonic()
        training = self._start(plan.environment(self._journal.folder))
        self._at("after start")
        self._write(STARTED, attempt=plan.attempt)
        self._command = training.pid
        if plan.action:
            to = "" if plan.step is None else f", from the checkpoint of step {count(plan.step)}"
            self._say(f"attempt {plan.attempt} of run {self._run} is started, after {_words(plan.reason)}{to}")
        return training

    def _pass_on(self, training: RunningAttempt, number: int) -> None:
        if number in SIGNALLED:
            self._told.append(number)
        training.send_signal(number)

    def _after(self, training: RunningAttempt) -> int | None:
        """Conclude why the command has ended; return its status, None where another attempt is due."""
        seen: RunSeen | Unknown = Unknown("its ranks were not looked at")
        try:
            if not self._acquitted(training.status, seen):
                seen = self._settled(training)
        except Exception as error:  # noqa: BLE001 - whatever it is, the status is the command's
            self._fault(error)
        end = training.wait()
        status = STATUS_STOPPED if end.status is None else end.status
        if end.error:
            self._say(f"the command cannot be run: {end.error}")
            self._ended(FAILED, None, end.error)
            return 127
        if how := self._acquitted(end.status, seen):
            self._ended(how, status, _why(how, status, self._told))
            return status
        if isinstance(seen, Unknown):
            self._ended(FAILED, status, f"nothing is done, as nothing is known: {seen.why}")
            self._say(
                f"the command of run {self._run} ended with {_status(status)}, and is not restarted, as nothing is "
                f"known of its ranks: {seen.why}"
            )
            return status
        try:
            return self._after_failure(training, end, status, seen)
        except Exception as error:  # noqa: BLE001 - the same
            self._fault(error)
            return status

    def _acquitted(self, status: int | None, seen: RunSeen | Unknown) -> str:
        """Return how the command ended if nothing failed, empty otherwise."""
        if status == 0:
            return FINISHED
        asked = {-number for number in SIGNALLED} | {128 + number for number in SIGNALLED}
        if self._told or status in asked:
            return EXTERNAL
        if isinstance(seen, Unknown):
            return ""
        ends = [rank for rank in seen.ranks if rank.state in ("dead", "failed")]
        return EXTERNAL if ends and all(rank.end_reason in TOLD for rank in ends) else ""

    def _after_failure(self, training: RunningAttempt, end: AttemptEnd, status: int, seen: RunSeen) -> int | None:
        finding = self._cause(end, seen)
        pending = self._held(finding)
        situation = self._situation(finding, seen, pending, ended=True)
        rule = self._policy.rules.get(finding.trigger)
        hold = None if rule is None else held_back(situation, self._policy, rule, self._memory)
        if rule is None or (hold is not None and hold.guard != COOL_DOWN):
            why = f"{_words(finding.trigger)} is not in the policy" if hold is None else hold.why
            self._hold(situation, hold.guard if hold else "policy", why)
            self._ended(FAILED, status, why)
            return status
        decision = pending.decision or decide(situation, self._policy, rule, self._memory)
        if decision.action in RESTARTS and hold is not None and self.mode != SHADOW:
            if self._signalled_within(not_before(rule, self._memory) - self._clock.wall()):
                self._ended(EXTERNAL, status, "a signal came before the restart was due")
                return status
            decision = decide(self._situation(finding, seen, pending, ended=True), self._policy, rule, self._memory)
        if not self._may(situation, decision, pending, wait=ASK_SECONDS) or not self._do(
            training, situation, rule, decision, pending
        ):
            self._ended(FAILED, status, "a signal came" if self._told else NOT_DONE[self.mode])
            return status
        if decision.action in RESTARTS:
            self._ended(FAILED, status, situation.finding.text)
            return None
        self._ended(STOPPED if decision.action == STOP else FAILED, status, decision.why)
        return status

    def _cause(self, end: AttemptEnd, seen: RunSeen) -> RunFinding:
        """Return the finding that explains the end of the command.

        Where a signal ended a launcher, its ranks were ended after it, by us.
        """
        before = self._seen
        launcher_died = (
            (end.status or 0) < 0
            and before is not None
            and worst(before) is None
            and str(self._command) not in {rank.pid for rank in before.ranks}
        )
        found = None if launcher_died else worst(seen)
        if found is not None and found.trigger not in ("hung", "frozen"):
            return found
        said = f"The command of run {self._run} ended with {_status(end.status or 0)}, and no rank failed before it."
        return RunFinding(EXITED, (), _status(end.status or 0), seen.step, "", said)

    def _settled(self, training: RunningAttempt) -> RunSeen | Unknown:
        """Return what is known once the exporter shows how the ranks have ended, or after a while."""
        deadline = self._clock.monotonic() + (SETTLE_SECONDS if self._seen is not None else UNSEEN_SECONDS)
        while True:
            seen = self._look(training)
            is_settled = isinstance(seen, RunSeen) and not seen.is_alive
            if is_settled or self._clock.monotonic() >= deadline:
                break
            self._told += [number for number in self._signals.wait([], WAIT_SECONDS) if number in SIGNALLED]
        if isinstance(seen, RunSeen):
            self._note_steps(seen)
        return seen

    def _ended(self, how: str, status: int | None, why: str) -> None:
        step = self._memory.best_step if self._seen is None else self._seen.step
        self._write(ENDED, how=how, status=status, step=step, checkpoints=self._checkpoints, why=why)

    # Findings while the command runs.

    def _look(self, training: RunningAttempt) -> RunSeen | Unknown:
        seen = self._source.look(self._clock.monotonic() - self._began)
        if isinstance(seen, RunSeen) and self._seen is not None and seen.time == self._seen.time:
            return Unknown("the exporter gives the same answer as before: it stands still")
        if isinstance(seen, RunSeen):
            self._remember_processes(training, seen)
            if foreign := [rank for rank in seen.ranks if rank.pid and not self._is_ours(rank)]:
                return Unknown(
                    f"rank {foreign[0].rank} of run {seen.name} is process {foreign[0].pid}, which this command has "
                    "not started: another run has the same name, or the exporter numbers the processes of this "
                    "container differently"
                )
        return seen

    def _note(self, seen: RunSeen | Unknown) -> None:
        """Keep the steps and checkpoints of an answer, and say for how long there has been none."""
        now = self._clock.monotonic()
        if isinstance(seen, RunSeen):
            if self._is_blind:
                self._write(BLIND, over=True, why="the exporter shows the run again")
                self._say(f"the exporter shows run {self._run} again")
            self._blind_since, self._is_blind = None, False
            return
        self._blind_since = now if self._blind_since is None else self._blind_since
        if now - self._blind_since >= BLIND_SECONDS and not self._is_blind:
            self._is_blind = True
            self._write(BLIND, over=False, why=seen.why)
            self._say(
                f"for {age(now - self._blind_since)} nothing has been known of run {self._run}, and nothing is done "
                f"until it is: {seen.why}. If the script names its run itself, give that name with --run"
            )

    def _note_steps(self, seen: RunSeen) -> None:
        self._seen = seen
        step = seen.checkpoint_step
        if step is not None and step == int(step) and int(step) not in self._checkpoints[-1:]:
            self._checkpoints = [*(one for one in self._checkpoints if one < step), int(step)][-CHECKPOINTS_KEPT:]

    def _remember_processes(self, training: RunningAttempt, seen: RunSeen) -> None:
        """Note which process each rank is, among those that the command started."""
        new = {
            rank.rank: int(rank.pid)
            for rank in seen.ranks
            if rank.pid.isdecimal() and self._processes.get(rank.rank, (0, ""))[0] != int(rank.pid)
        }
        self._command = training.pid
        if not new or not training.pid:
            return
        ours = {training.pid, *below(training.pid)}
        self._processes.update({rank: (pid, started_at(pid)) for rank, pid in new.items() if pid in ours})

    def _is_ours(self, rank: RankSeen) -> bool:
        return str(self._processes.get(rank.rank, (0, ""))[0]) == rank.pid

    def _is_there(self, rank: RankSeen) -> bool | None:
        pid, started = self._processes.get(rank.rank, (0, ""))
        return started_at(pid) == started if started else None

    def _judge(self, training: RunningAttempt, seen: RunSeen) -> int | Decision | None:
        """Act on what is wrong with a run whose command runs."""
        before = self._seen
        self._note_steps(seen)
        finding = worst(seen)
        if finding is None:
            self._withdraw()
            return None
        pending = self._held(finding)
        pending.looks += 1
        moved = before is not None and (before.step or 0) < (seen.step or 0)
        situation = self._situation(finding, seen, pending, ended=False, moved=moved)
        rule = self._policy.rules.get(finding.trigger)
        if rule is not None:
            return self._act_on(training, situation, rule, pending)
        self._once(pending, situation, "policy", f"{_words(finding.trigger)} is not in the policy")
        return None

    def _act_on(
        self, training: RunningAttempt, situation: Situation, rule: Rule, pending: OpenFinding
    ) -> int | Decision | None:
        """Carry out what the policy says of a finding, once no guard holds us back and a person agrees."""
        hold = held_back(situation, self._policy, rule, self._memory)
        if hold is not None or pending.looks < 2:
            if hold is not None and hold.guard != WAIT:
                self._once(pending, situation, hold.guard, hold.why)
            return None
        decision = pending.decision or decide(situation, self._policy, rule, self._memory)
        if pending.is_done or not self._may(situation, decision, pending):
            return None
        pending.is_done = True
        if not self._do(training, situation, rule, decision, pending) or decision.action == LEAVE:
            return None
        if decision.action == STOP or self._is_unkillable:
            self._ended(STOPPED, None, decision.why if decision.action == STOP else UNKILLABLE)
            return STATUS_STOPPED
        self._ended(FAILED, None, situation.finding.text)
        return decision

    def _situation(
        self, finding: RunFinding, seen: RunSeen, pending: OpenFinding, *, ended: bool, moved: bool = False
    ) -> Situation:
        furthest, best = seen.step, self._best_before
        bad = finding.step if finding.trigger == NOT_FINITE else None
        good = [step for step in self._checkpoints if bad is None or step < bad]
        return Situation(
            finding=finding,
            run=seen,
            lasted=self._clock.monotonic() - pending.since,
            now=self._clock.wall(),
            ended=ended,
            steps_moved=moved,
            is_there=self._is_there,
            good_step=max(good, default=None),
            gained=furthest is not None and (best is None or furthest > best),
        )

    def _held(self, finding: RunFinding) -> OpenFinding:
        """Return since when a finding has held, from now on if it is another than before."""
        if self._pending is None or self._pending.trigger != finding.trigger:
            self._withdraw()
            self._pending = OpenFinding(finding.trigger, self._clock.monotonic())
        return self._pending

    def _withdraw(self) -> None:
        """Forget the finding that held until now."""
        if self._pending is not None and self._pending.number and not self._pending.is_done:
            self._write(OUTCOME, id=self._pending.number, action="ask", ok=False, text="the finding is gone: withdrawn")
            self._say(f"the question {self._pending.number} is withdrawn: what was found of run {self._run} is gone")
        self._pending = None

    # Decisions and what follows.

    def _once(self, pending: OpenFinding, situation: Situation, guard: str, why: str) -> None:
        """Write that nothing is done about a finding, once for each guard."""
        if guard not in pending.said:
            pending.said.add(guard)
            self._hold(situation, guard, why)

    def _decided(
        self, situation: Situation, decision: Decision, outcome: str, guard: str = "", number: str = ""
    ) -> str:
        """Write a decision with all that is needed to carry it out, and return its id."""
        number = number or secrets.token_hex(3)
        finding = situation.finding
        self._write(
            DECISION, id=number, mode=self.mode, outcome=outcome, guard=guard, ranks=list(finding.ranks),
            step=situation.run.step, text=finding.text, why=decision.why, checkpoints=self._checkpoints,
            **_restart_facts(finding, decision),
        )  # fmt: skip
        return number

    def _hold(self, situation: Situation, guard: str, why: str) -> None:
        """Write and say that nothing is done about a finding."""
        self._decided(situation, Decision(LEAVE, why), HELD, guard)
        self._say(f"nothing is done about this, as {why}. {situation.finding.text}")

    def _may(self, situation: Situation, decision: Decision, pending: OpenFinding, wait: float = 0.0) -> bool:
        """Return whether a decision is to be carried out now: in act mode, or once a person has confirmed it.

        `wait` is for how many seconds to wait for that here.
        """
        if self.mode == SHADOW:
            if not pending.is_done:
                pending.is_done = True
                self._decided(situation, decision, WOULD)
                self._say(
                    f"would {_words(decision.action)} (shadow mode: nothing is done): {decision.why}. "
                    f"{situation.finding.text}"
                )
            return False
        if self.mode == ASK and not self._agreed(situation, decision, pending, wait):
            return False
        mode = self.mode
        pending.number = self._decided(situation, decision, DECIDED, number=pending.number)
        return self.mode == mode  # or else the journal has failed, and the decision is not on disk

    def _agreed(self, situation: Situation, decision: Decision, pending: OpenFinding, wait: float) -> bool:
        """Return whether a person has confirmed a decision, who is asked at first."""
        if not pending.number:
            pending.decision = decision
            pending.number = self._decided(situation, decision, ASKED)
            self._say(
                f"{situation.finding.text} To {_words(decision.action)}, {decision.why}, confirm with: "
                f"tachograph supervise confirm {pending.number} --state {self._journal.folder.absolute()}"
            )
        deadline = self._clock.monotonic() + wait
        while not (is_confirmed := self._is_confirmed(pending.number)) and self._clock.monotonic() < deadline:
            if self._signalled_within(WAIT_SECONDS):
                return False
        return is_confirmed

    def _is_confirmed(self, number: str) -> bool:
        return (self._journal.folder / CONFIRMATIONS / number).is_file()

    def _signalled_within(self, seconds: float) -> bool:
        """Wait so long, and return whether a signal came that ends the run."""
        arrived = self._signals.wait([], max(seconds, 0.0))
        self._told += [number for number in arrived if number in SIGNALLED]
        return bool(self._told)

    def _do(
        self, training: RunningAttempt, situation: Situation, rule: Rule, decision: Decision, pending: OpenFinding
    ) -> bool:
        """Carry a decision out; return False where it was not, as the journal cannot be written."""
        number = pending.number
        deeds: dict[str, Callable[[], str]] = {
            NOTIFY: lambda: self._notify(situation, decision),
            KEEP_EVIDENCE: lambda: self._keep(number, situation.run),
        }
        for action in rule.first:
            if not self._effect(number, deeds[action], action=action, text=self._notice(situation, decision)):
                return False
        if decision.action == LEAVE:
            return True
        if not situation.ended and not self._still_holds(training, situation):
            return False
        ended: list[AttemptEnd] = []

        def end() -> str:
            ended.append(training.end() if not situation.ended else AttemptEnd(None))
            return UNKILLABLE if ended[0].left < 0 else "the training has ended"

        if not self._effect(number, end, **_restart_facts(situation.finding, decision)):
            return False
        if ended[0].left < 0 and decision.action in RESTARTS:
            self._say(
                f"run {self._run} is not started again: some of its processes cannot be killed, as they wait in the "
                "kernel, for a GPU or a file system. Restart the node, or start the run on another one"
            )
            self._is_unkillable = True
        return True

    def _still_holds(self, training: RunningAttempt, situation: Situation) -> bool:
        """Return whether a finding still holds now that its evidence is kept, which takes a while."""
        for number in self._signals.wait([], 0.0):
            self._pass_on(training, number)
        seen = self._source.look(self._clock.monotonic() - self._began)
        finding = worst(seen) if isinstance(seen, RunSeen) else None
        if not self._told and not training.has_ended() and finding and finding.trigger == situation.finding.trigger:
            return True
        self._pending = None
        self._hold(situation, GONE, "it was gone before anything was ended")
        return False

    def _effect(self, number: str, do: Callable[[], str], **facts: object) -> bool:
        """Do something with its intention written before and its outcome after; return False if it was not done."""
        action = facts["action"]
        if not self._write(INTENT, id=number, **facts):
            return False
        self._at(f"before {action}")
        text = do()
        self._at(f"after {action}")
        self._write(OUTCOME, id=number, action=action, ok=True, text=text)
        return True

    def _notice(self, situation: Situation, decision: Decision) -> str:
        remedy = f" What usually helps: {situation.finding.remedy}" if situation.finding.remedy else ""
        return f"{situation.finding.text} To be done: {_words(decision.action)}, {decision.why}.{remedy}"

    def _notify(self, situation: Situation, decision: Decision) -> str:
        self._say(self._notice(situation, decision))
        return "written to standard error"

    # When something fails here.

    def _write(self, kind: str, **facts: object) -> bool:
        """Add to the journal; where that fails, nothing is acted upon any more."""
        if self._journal.write(kind, **facts):
            take(self._memory, self._journal.entries[-1])
            return True
        if self.mode != SHADOW:
            self.mode = SHADOW
            self._say(
                f"{self._journal.path} cannot be written: {self._journal.full}. The training goes on, and nothing is "
                "done any more until the supervisor is started again (shadow mode): make room on that disk"
            )
        return False

    def _fault(self, error: Exception) -> None:
        """Say that this supervisor has failed, and act no more."""
        self.mode = SHADOW
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        self._say(
            f"a fault of the supervisor's own: {said}. The training goes on, and nothing is done any more (shadow "
            "mode). Please report this"
        )
        with suppress(Exception):
            self._write(FAULT, text=said)


def _restart_facts(finding: RunFinding, decision: Decision) -> dict[str, object]:
    """Return what the journal has of a decision and of its intention, so that either is enough to carry it on."""
    return {
        "trigger": finding.trigger, "action": decision.action, "cost": decision.cost,
        "signature": list(finding.signature), "line": finding.line, "resume_step": decision.step,
    }  # fmt: skip


def _status(status: int) -> str:
    """Return an exit status in words."""
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"


def _why(how: str, status: int, told: Sequence[int]) -> str:
    if how == FINISHED:
        return "the command has finished"
    names = listed([signal.Signals(number).name for number in told])
    return f"ended from outside, by {names or _status(status)}: left alone, and no part of the budget"


def _words(name: str) -> str:
    """Return an action or a trigger as it is read in a sentence."""
    return name.replace("_", " ")
